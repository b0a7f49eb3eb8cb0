"""Images and sounds in prompts: placeholders are identified by the raw data, and not by the engine's hash of it."""

import sys
from collections.abc import Iterable, Iterator, Mapping
from hashlib import blake2b
from typing import Any


class _OutOfReachError(Exception):
    """Data that only a device, or another process, can read."""


def digest_of(data: Any) -> str | None:
    """The digest of the input of a model's encoder; `None`: the input cannot be read here, or there is none."""
    if data is None:
        return None
    digest = blake2b(digest_size=8)
    try:
        for part in _parts(data):
            digest.update(part)
    except _OutOfReachError:
        return None
    return digest.hexdigest()


def _parts(data: Any) -> Iterator[Any]:
    """The bytes of tensors, arrays and plain values, each with its kind and shape."""
    torch: Any = sys.modules.get("torch")
    if torch is not None and isinstance(data, torch.Tensor):
        if data.device.type != "cpu":
            raise _OutOfReachError
        yield f"{data.dtype}{tuple(data.shape)}".encode()
        yield data.detach().contiguous().reshape(-1).view(torch.uint8).numpy()
    elif hasattr(data, "tobytes"):
        yield f"{getattr(data, 'dtype', '')}{getattr(data, 'shape', '')}".encode()
        yield data.tobytes()
    elif isinstance(data, Mapping):
        for key in sorted(data):
            yield repr(key).encode()
            yield from _parts(data[key])
    elif isinstance(data, bytes):
        yield data
    elif isinstance(data, str | int | float | bool | None):
        yield repr(data).encode()
    elif isinstance(data, Iterable):
        for part in data:
            yield from _parts(part)
            yield b","
    elif hasattr(data, "data"):  # one of vLLM's fields
        yield from _parts(data.data)
    else:
        raise _OutOfReachError
