"""The device manager: page numbers exist only on the device, and are never read back."""

from kvcuda.device_manager import DeviceManager
from kvcuda.manager import Manager

__all__ = ["DeviceManager", "Manager"]
