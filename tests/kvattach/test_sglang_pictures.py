"""Images of SGLang's requests, as the hooks see them: by their data, and not by sentinels made of the engine's hash."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kvattach.hooks import Hooks, chained
from kvattach.sglang.pictures import Pictures, places_of
from kvattach.sglang.view import Stay
from kvlab.drives import CheckedTrace


class Req:
    """A request that is given images."""

    multimodal_inputs: Any = None

    def extend_image_inputs(self, given: Any) -> None:
        self.multimodal_inputs = given


@pytest.fixture
def pictures() -> Iterator[Pictures]:
    hooks = Hooks(CheckedTrace())
    release: Any = SimpleNamespace(batches=SimpleNamespace(Req=Req))
    yield Pictures(release, hooks, lambda: None)
    assert hooks.problem is None
    hooks.detach()


def image(data: bytes | None, *values: int, start: int = 0, hashed: int = 5) -> Any:
    return SimpleNamespace(
        feature=data, precomputed_embeddings=None, hash=hashed, pad_values=values, offsets=[(start, start + 3)]
    )


def labels(tokens: list[int], *items: Any) -> list[str]:
    """The labels of the pages of a request with images, two tokens each."""
    req, stay = Req(), Stay("r", 2, "r")
    req.extend_image_inputs(SimpleNamespace(mm_items=items))
    stay.images = places_of(req)
    return stay.labels(tokens, 0, len(tokens) // 2)


def test_a_request_is_labelled_by_its_images_and_not_by_sentinels(pictures: Pictures) -> None:
    cat = labels([91, 92, 91, 92, 3, 4], image(b"cat", 91, 92))
    assert cat == labels([71, 72, 71, 72, 3, 4], image(b"cat", 71, 72, hashed=6))
    assert not {*cat} & {*labels([91, 92, 91, 92, 3, 4], image(b"dog", 91, 92))}
    assert not {*cat} & {*labels([91, 92, 91, 92, 3, 4])}
    assert len({*cat, *labels([91, 92, 91, 92, 3, 4], image(b"cat", 91, 92, start=1))}) == 6


def test_a_tree_is_labelled_by_the_images_that_had_its_sentinels_last(pictures: Pictures) -> None:
    cat = labels([91, 92, 91, 92], image(b"cat", 91, 92))
    first = pictures.chained("", [91, 92])
    assert [first, pictures.chained(first, [91, 92])] == cat
    assert pictures.chained("", [3, 4]) == chained("", (3, 4))
    labels([91, 92, 91, 92], image(b"dog", 91, 92))
    assert pictures.chained("", [91, 92]) != first


def test_data_that_cannot_be_read_have_the_engines_hash(pictures: Pictures) -> None:
    unread = labels([91, 92, 91, 92], image(None, 91, 92))
    assert unread == labels([71, 72, 71, 72], image(None, 71, 72))
    assert not {*unread} & {*labels([91, 92, 91, 92], image(None, 91, 92, hashed=6))}


def test_sentinels_given_last_are_remembered(pictures: Pictures, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvattach.sglang.pictures.REMEMBERED", 2)
    for value in (1, 2, 1, 3):
        labels([], image(b"cat", value))
    assert [*pictures.sentinels] == [1, 3]
