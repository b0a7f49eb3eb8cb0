"""Hooks into SGLang's images and sounds: placeholders are identified by raw data.

SGLang replaces placeholders by sentinels, made from its own hash, and finds pages by them. A request's labels have the
digest of its data instead. A tree's labels have the digest of the data that were last given with a sentinel.
"""

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

from kvattach.hooks import Hooks, chained, illustrated
from kvattach.media import digest_of
from kvattach.sglang.release import Release

PLACEHOLDER = -1
"""The token of each placeholder, in labels."""
REMEMBERED = 1 << 18
"""The most sentinels that are remembered, the newest. Pages of forgotten images have other names."""

Seen = tuple[str, int]
"""A placeholder's data: the digest of the whole, and the number of its sentinel."""


class Pictures:
    """Follows the images and sounds of requests."""

    def __init__(self, release: Release, hooks: Hooks, comes: Callable[[], None]) -> None:
        """Install the hooks; `comes` is called with each image."""
        self.sentinels: dict[int, Seen] = {}
        self._hooks, self._comes = hooks, comes
        hooks.hook(release.batches.Req, "extend_image_inputs", after=lambda _, __, ___, given: self._given(given))

    def _given(self, given: Any) -> None:
        for item in given.mm_items:
            self._comes()
            data = item.precomputed_embeddings if item.feature is None else item.feature
            vars(item)["kvspec_digest"] = digest = digest_of(data) or f"{item.hash:x}"
            self._hooks.later(partial(self._known, digest, _values(item)))

    def _known(self, digest: str, values: Sequence[int]) -> None:
        for number, value in enumerate(values):
            self.sentinels.pop(value, None)
            self.sentinels[value] = digest, number
        while len(self.sentinels) > REMEMBERED:
            del self.sentinels[next(iter(self.sentinels))]

    def chained(self, before: str, tokens: Sequence[int]) -> str:
        """The label of a tree's tokens after others."""
        if not self.sentinels:
            return chained(before, tuple(tokens))
        return labelled(before, tokens, [self.sentinels.get(token) for token in tokens])


def places_of(req: Any) -> dict[int, Seen]:
    """The placeholders of a request: position -> its data."""
    places: dict[int, Seen] = {}
    for item in getattr(getattr(req, "multimodal_inputs", None), "mm_items", ()):
        digest, count = vars(item).get("kvspec_digest") or f"{item.hash:x}", len(_values(item))
        for start, stop in item.offsets or ():
            places |= {at: (digest, (at - start) % count) for at in range(start, stop + 1)}
    return places


def labelled(before: str, tokens: Sequence[int], seen: Sequence[Seen | None]) -> str:
    """The label of tokens after others; `seen`: the data of each token that is a placeholder."""
    images = tuple(one for one in seen if one is not None)
    if not images:
        return chained(before, tuple(tokens))
    bare = tuple(token if one is None else PLACEHOLDER for token, one in zip(tokens, seen, strict=True))
    return illustrated(chained(before, bare), images)


def _values(item: Any) -> Sequence[int]:
    """The sentinels of an item; older releases have one."""
    return getattr(item, "pad_values", None) or (item.pad_value,)
