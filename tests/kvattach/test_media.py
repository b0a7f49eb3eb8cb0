"""The digest of an image's data: of what an encoder is given, and not of where it lies."""

from collections import UserDict
from types import SimpleNamespace
from typing import Any

import pytest

from kvattach.media import digest_of

torch = pytest.importorskip("torch")
numpy = pytest.importorskip("numpy")


def item(pixels: Any) -> Any:
    """An item of vLLM: fields by name."""
    return UserDict(pixels=SimpleNamespace(data=pixels, field=object()))


def test_equal_data_have_one_digest() -> None:
    pixels = torch.arange(6, dtype=torch.bfloat16).reshape(2, 3)
    assert digest_of(item(pixels)) == digest_of(item(pixels.t().contiguous().t()))
    assert digest_of([pixels, 1]) == digest_of([pixels.clone(), 1])
    assert digest_of(numpy.arange(3)) == digest_of(numpy.arange(3))


def test_other_values_shapes_kinds_and_names_have_others() -> None:
    pixels = torch.arange(6)
    others = [pixels, pixels + 1, pixels.reshape(2, 3), pixels.float(), [pixels], [pixels, pixels], item(pixels)]
    others += [b"pixels", "pixels", numpy.arange(3), numpy.arange(4), UserDict(grid=SimpleNamespace(data=pixels))]
    assert len({digest_of(one) for one in others}) == len(others)


def test_data_of_a_device_or_of_another_process_have_none() -> None:
    assert digest_of(None) is None
    assert digest_of(item(torch.empty(2, device="meta"))) is None
    assert digest_of(object()) is None
