"""The device manager: page identities only on the device, nothing read back."""

from kvcuda.device_manager import DeviceManager
from kvcuda.manager import Manager

__all__ = ["DeviceManager", "Manager"]
