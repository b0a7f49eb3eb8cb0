"""A device of torch whose streams and events are objects of C++, as a GPU's are: `device.cpp`, and what drives it.

A process that has it keeps it. Compiling takes seconds and needs `g++`.
"""

import ctypes
import shutil
import subprocess
from pathlib import Path
from typing import Any, ClassVar

import pytest
import torch
from torch.utils.backend_registration import rename_privateuse1_backend

from kvlab.device import Point

NAME = "simulated"
COMPILER = shutil.which("g++")


def compiled(folder: Path) -> Path:
    """The library of the device, compiled into a folder. Without a compiler the test is skipped."""
    if COMPILER is None:
        pytest.skip("there is no g++")
    home, library = Path(torch.__file__).parent, folder / "device.so"
    source = Path(__file__).with_name("device.cpp")
    where = [f"-I{home / 'include'}", f"-L{home / 'lib'}", "-lc10", f"-Wl,-rpath,{home / 'lib'}"]
    command = [COMPILER, "-std=c++20", "-shared", "-fPIC", "-o", str(library), str(source), *where]
    subprocess.run(command, check=True, timeout=120)
    return library


class Stream(torch.Stream):
    """A stream as a driver has it (`kvlab.device.Stream`), with the functions in Python that a GPU's has in torch."""

    current: ClassVar["Stream"]
    all: ClassVar[list["Stream"]] = []
    order: ClassVar[Any] = None
    device_library: ClassVar[Any]

    def __new__(cls, *_: Any, **__: Any) -> "Stream":
        """A new stream of the device."""
        return super().__new__(cls, device=f"{NAME}:0")

    def __init__(self, *_: Any, **__: Any) -> None:
        """With nothing in it."""
        self.cuda_stream: int | str = self.stream_id
        Stream.all.append(self)

    wait_event: Any = torch.cuda.Stream.wait_event
    wait_stream: Any = torch.cuda.Stream.wait_stream

    def record_event(self, event: Any = None) -> Any:
        """An event of C++ that stands for everything so far."""
        event = event or torch.Event()
        event.record(self)
        return event

    def queue(self, _: Any = None) -> None:
        """Queue some work."""
        self.device_library.device_queue(self.stream_id)

    @property
    def end(self) -> Point:
        """Everything that was queued so far."""
        return Point(self, self.device_library.device_entries(self.stream_id))  # type: ignore[arg-type]

    @property
    def done(self) -> int:
        """The number of complete entries."""
        return int(self.device_library.device_done(self.stream_id))

    @property
    def ready(self) -> bool:
        """Whether nothing holds the next entry back."""
        return bool(self.device_library.device_ready(self.stream_id))

    def finish(self, entries: int) -> None:
        """Complete the first entries."""
        self.device_library.device_finish(self.stream_id, entries)

    def step(self) -> bool:
        """Complete one entry, if nothing holds it back."""
        ready = self.ready
        if ready:
            self.finish(self.done + 1)
        return ready

    def synchronize(self) -> None:
        """Wait for everything so far."""
        self.finish(self.end.entries)


def load(library: str) -> Any:
    """Let torch have this device, with no other one. The library."""

    class Hook(torch._C._acc.PrivateUse1Hooks):
        def is_available(self) -> bool:
            return True

        def has_primary_context(self, _: int) -> bool:
            return True

        def is_built(self) -> bool:
            return True

    class Module:
        is_available = is_initialized = staticmethod(lambda: True)
        current_device = staticmethod(lambda: 0)
        device_count = staticmethod(lambda: 1)
        _is_in_bad_fork = staticmethod(lambda: False)

    Stream.device_library = ctypes.CDLL(library)
    rename_privateuse1_backend(NAME)
    torch._register_device_module(NAME, Module)
    Stream.kept = Hook()  # type: ignore[attr-defined]
    torch._C._acc.register_python_privateuseone_hook(Stream.kept)  # type: ignore[attr-defined]
    assert torch.Event().device.type == NAME
    return Stream.device_library
