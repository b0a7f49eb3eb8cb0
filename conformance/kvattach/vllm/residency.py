"""A request's residency: the holder of its pages, and the labels in its block tables, some of them only promised."""

import math
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from kvattach.hooks import chained, illustrated
from kvattach.media import digest_of
from kvattach.residency import foreign
from kvspec.memory.events import Map, Unify, Unmap, Use

POOL = "kv"
"""The name in a trace of the pool that all groups share."""
HOST = "host"
"""The name in a trace of the host pool of vLLM's own offloading."""


@dataclass(frozen=True)
class Group:
    """One KV cache group: its pages hold `size` tokens, of which a pass reads the last `window` (0: all)."""

    number: int
    size: int
    window: int
    state: bool
    """A page is one recurrent state."""
    page_size: int
    """Slots of a page in the pool that all groups share. A group with fewer tokens a page leaves the rest unused."""
    chunk: int = 0
    """Tokens of an attention chunk: a pass attends to its own chunk alone (0: to all tokens)."""
    rebuilt: bool = False
    """The group is not cached: after a hit its last window is computed again."""

    def slot(self, token: int) -> int:
        """The position of a token's slot in a table. A page's last token is followed by the next page's first slot."""
        return token // self.size * self.page_size + token % self.size

    def first_read(self, token: int) -> int:
        """The first token that the computation of `token` attends to."""
        if self.chunk:
            return token // self.chunk * self.chunk
        return max(0, token - self.window + 1) if self.window else 0

    @property
    def bounded(self) -> bool:
        """Whether a pass attends to the last tokens only."""
        return bool(self.window or self.chunk)


def group_for(number: int, manager: Any, page_size: int) -> Group:
    """The group that one of vLLM's managers serves."""
    spec = manager.kv_cache_spec
    window = getattr(spec, "sliding_window", None) or 0
    chunk = getattr(spec, "attention_chunk_size", None) or 0
    rebuilt = bool(getattr(spec, "prefix_replay_tokens", 0))
    return Group(number, manager.block_size, window, hasattr(spec, "mamba_cache_mode"), page_size, chunk, rebuilt)


@dataclass
class Run:
    """One request from its first page to its end, preemption or next turn: a holder with a table for each group."""

    name: str
    request: Any
    groups: list[Group]
    rows: list[int] = field(init=False)
    """The number of pages in each table, as the workers have it."""
    keeper: str = field(init=False)
    """The holder of its pages: the run itself, or a lease on the pages that it leaves."""
    drafts: int = 0
    """Draft tokens in flight: the scheduler's position may be ahead of the true one by this many."""
    sampling: int = 0
    """Launches in flight that sample a token for it."""
    tables: list[str] = field(init=False)
    """The name of each group's block table."""
    _unit: int = field(init=False)
    """Tokens of one link in the chain of labels. This divides the tokens of every group's page."""
    _whose: str = field(init=False)
    """The label before its first token: see `foreign`."""
    _images: list[tuple[str, int, int]] = field(init=False)
    """The images and sounds in its prompt: what they are, and where they begin and end."""
    due: int = sys.maxsize
    """The number of known tokens that resolves the next promised label."""
    _chain: list[str] = field(default_factory=list)
    _promised: list[tuple[int, int]] = field(default_factory=list)
    """Pages whose last token is not known yet: group and index."""
    _states: list[tuple[int, int]] = field(default_factory=list)
    """States whose last token is not known yet: group and tokens."""

    def __post_init__(self) -> None:
        self.keeper = self.name
        self.rows = [0] * len(self.groups)
        self.tables = [f"{self.name}/{group.number}" for group in self.groups]
        self._unit = math.gcd(*(group.size for group in self.groups))
        lora, salt = (getattr(self.request, name, None) for name in ("lora_request", "cache_salt"))
        self._whose = foreign(lora and lora.lora_path, salt)
        places = [(feature, feature.mm_position.offset) for feature in self.request.mm_features or ()]
        self._images = [(seen(feature), start, start + feature.mm_position.length) for feature, start in places]

    def table(self, group: Group) -> str:
        """The name of the group's block table."""
        return self.tables[group.number]

    def label(self, group: Group, index: int) -> str:
        """The label of page `index` of a group's table: its tokens, or a promised label if some are not sampled yet.

        `grown` later unifies each promised label with its tokens, whether a table has the page by then or not.
        """
        end, page = (index + 1) * group.size, (group.number, index)
        if end > len(self.request._all_token_ids) and page not in self._promised:
            self._promised.append(page)
            self.due = min(self.due, end)
        return self.last_label(group, index, self.request._all_token_ids)

    def _known(self, group: Group, end: int, tokens: list[int]) -> str:
        while len(self._chain) * self._unit < end:
            start = len(self._chain) * self._unit
            before = self._chain[-1] if self._chain else self._whose
            link = tuple(tokens[start : start + self._unit])
            self._chain.append(illustrated(chained(before, link), self._media(start)))
        return labelled(group, self._chain[end // self._unit - 1])

    def last_label(self, group: Group, index: int, tokens: list[int]) -> str:
        """The label of page `index` at the time when the request had these tokens."""
        end = (index + 1) * group.size
        return self._known(group, end, tokens) if end <= len(tokens) else self.promise(group, index)

    def part(self, group: Group, tokens: int) -> str:
        """The label of a page that is filled up to the request's first `tokens` tokens."""
        return self._known(group, tokens, self.request._all_token_ids)

    def hit(self, tokens: int) -> Iterator[Unify]:
        """The labels to unify after a hit of the first `tokens` tokens."""
        for group in self.groups:
            yield from self.begun(group, tokens)

    def begun(self, group: Group, tokens: int) -> Iterator[Unify]:
        """Unify the last, partial page of the first `tokens` tokens with every page that begins with the same ones."""
        page, inside = divmod(tokens, group.size)
        if not group.state:
            for slots in range(self._unit, inside + 1, self._unit):
                yield Unify(self.label(group, page), self.part(group, page * group.size + slots), slots)

    def begins(self, group: Group, tokens: int) -> Iterator[Unify]:
        """Unify the last, partial page of the first `tokens` tokens with any server's page that begins so."""
        page, inside = divmod(tokens, group.size)
        if inside:
            yield Unify(self.label(group, page), self.shared(group, page, tokens), inside)

    def shared(self, group: Group, index: int, tokens: int) -> str:
        """The label of page `index`, up to the first `tokens` tokens; the same on every server with such pages."""
        start, stop = index * group.size, (index + 1) * group.size
        if stop <= tokens:
            return self.part(group, stop)
        before = self._whose
        if index:
            self._known(group, start, self.request._all_token_ids)
            before = self._chain[start // self._unit - 1]
        same = illustrated(chained(before, tuple(self.request._all_token_ids[start:tokens])), self._media(start))
        return f"{labelled(group, same)} begins"

    def state_label(self, group: Group, tokens: int) -> str:
        """The label of the state after so many tokens. Between page borders the label is the run's own."""
        if tokens % self._unit == 0 and tokens <= len(self.request._all_token_ids):
            return self.part(group, tokens)
        label = f"{self.name}/{group.number}@{tokens}"
        if tokens % self._unit == 0:
            self._states.append((group.number, tokens))
            self.due = min(self.due, tokens)
        return label

    def states(self, group: Group, start: int, stop: int, known: int) -> tuple[Use | None, Use]:
        """The uses of a recurrent state by a pass over tokens `start` to `stop`: a page to read and a page to write.

        `known` counts the tokens that are known or in flight.
        """
        size, table = group.page_size, self.table(group)
        old, new = (start - 1) // group.size * size, (stop - 1) // group.size * size
        read = Use(table, start=old, stop=old + size, labels=[self.state_label(group, start)]) if start else None
        label = self.state_label(group, stop) if stop <= known else f"no token of {table}@{stop}"
        return read, Use(table, start=new, stop=new + size, labels=[label])

    def promise(self, group: Group, index: int) -> str:
        """The promised label of a page with tokens that are still to be sampled."""
        return f"{self.name}/{group.number}#{index}"

    def mapped(self, group: Group, pages: list[int]) -> Map:
        """Append these pages to the table; page 0 stands for a skipped place."""
        first = self.rows[group.number]
        self.rows[group.number] += len(pages)
        labels = None
        if not group.state:
            labels = [self.label(group, index) for index in range(first, first + len(pages))]
        return Map(self.table(group), self.name, POOL, first, list(pages), labels)

    def unmapped(self) -> Iterator[Unmap]:
        """Forget the tables."""
        return (Unmap(self.table(group)) for group in self.groups if self.rows[group.number])

    def follows(self, old: "Run", before: list[int]) -> Iterator[Unify]:
        """Unify what an earlier turn has left, that had the tokens `before`: its last token may be another one now."""
        now, position = self.request._all_token_ids, self.request.num_computed_tokens
        pairs = enumerate(zip(before, now, strict=False))
        kept = next((at for at, (was, new) in pairs if was != new), min(len(before), len(now)))
        for group in self.groups:
            page, inside = divmod(kept, group.size)
            if inside and not group.state:
                yield Unify(self.label(group, page), old.last_label(group, page, before), inside)
        for group in self.groups:
            if group.state and position % group.size:
                yield Unify(self.state_label(group, position), old.state_label(group, position))

    def grown(self) -> Iterator[Unify]:
        """Unify the promised labels whose tokens are known now with these tokens."""
        known, promised = len(self.request._all_token_ids), self._promised
        states, self._states, self._promised, self.due = self._states, [], [], sys.maxsize
        for number, index in promised:
            group = self.groups[number]
            if (index + 1) * group.size <= known:
                yield Unify(self.promise(group, index), self.label(group, index))
            else:
                self._promised.append((number, index))
                self.due = min(self.due, (index + 1) * group.size)
        for number, tokens in states:
            label = f"{self.name}/{number}@{tokens}"
            if (now := self.state_label(self.groups[number], tokens)) != label:
                yield Unify(label, now)

    def reads(self, group: Group, start: int, stop: int) -> Use | None:
        """The reads before token `stop` of a pass that begins at token `start`."""
        first = group.first_read(start)
        if group.rebuilt:
            first = max(first, self.request.replay_start)
        return Use(self.table(group), start=group.slot(first), stop=group.slot(stop)) if first < stop else None

    def sent(self, group: Group, row: list[int], stop: int) -> Use | None:
        """The reads of a connector that is given `row`: from its first page that was not skipped up to token `stop`."""
        skipped = next((index for index, page in enumerate(row) if page), len(row))
        start, end = skipped * group.page_size, group.slot(stop)
        return Use(self.table(group), start=start, stop=end) if start < end and not group.state else None

    def writes(self, group: Group, start: int, stop: int, at_most: bool = False) -> Use | None:
        """The writes of tokens `start` to `stop`, as far as the table reaches."""
        end = min(group.slot(stop), self.rows[group.number] * group.page_size)
        return (
            Use(self.table(group), start=group.slot(start), stop=end, at_most=at_most)
            if group.slot(start) < end
            else None
        )

    def _media(self, start: int) -> tuple[Any, ...]:
        """The images and sounds with tokens in one link of the chain."""
        stop = start + self._unit
        return tuple((image, begin) for image, begin, end in self._images if begin < stop and start < end)


def seen(feature: Any) -> str:
    """The digest of an image's or a sound's data; the engine's own hash where the scheduler cannot read the data."""
    known: str | None = getattr(feature, "kvspec_digest", None)
    if known is None:
        known = feature.kvspec_digest = digest_of(feature.data) or feature.identifier
    return known


def labelled(group: Group, chain: str) -> str:
    """The label of a group's page whose tokens end with this link of the chain."""
    return f"{group.number}:{chain}"


def named(key: Any) -> str:
    """A key of the prefix cache as a trace has it: the end of the hash, and the group.

    In older releases the hash of a block of several links of the chain is the concatenation of their hashes.
    """
    return f"{key[-12:-4].hex()}.{group_of(key)}"


def group_of(key: Any) -> int:
    """The KV cache group whose block a key finds."""
    return int.from_bytes(key[-4:], "big")
