"""Hooks into SGLang's recurrent states: slots of requests and of the tree, copies, and the effects of launches.

A state has the label of the page that ends at its position. A launch reads a request's state, advances it in its slot,
and may keep an intermediate state in another slot, from which the tree takes it.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

from kvattach.hooks import Trace, chained
from kvattach.sglang.release import Release
from kvattach.sglang.storage import Storage
from kvattach.sglang.table import Table
from kvattach.sglang.view import NEW, STATES, Ids, Stay
from kvspec.memory.events import Take, Transfer, Use


class Kept(NamedTuple):
    """The states that a launch keeps."""

    slots: Any
    """The tensor with a slot for each request."""
    positions: list[int | None]
    """The number of tokens that each state has seen; `None`: the launch keeps none for this request."""


Rest = Sequence[int]
"""The tokens after the last full page before a position, as far as they are known."""


class States(Storage):
    """Follows recurrent states."""

    _table: Table

    def __init__(self, release: Release, trace: Trace, stream: Any, event: Any) -> None:
        """Install the hooks. `stream` and `event` are the classes that the release uses."""
        super().__init__(release, trace, stream, event)
        if release.state_allocator is None:
            return
        hook = self.hooks.hook
        hook(release.state_allocator, "_do_alloc", after=lambda _, slots, *__: self._states_taken(slots))
        hook(release.state_allocator, "free", before=lambda _, slots: self._states_freed(slots))
        hook(release.pools.MambaPool, "copy_from", before=lambda _, source, target: self._copied(source, target))
        hook(release.pools.MambaPool, "clear_slots", before=lambda _, slots: self._cleared(slots))

    def _states_taken(self, slots: Any) -> None:
        if slots is not None and len(slots):
            self.hooks.later(self._states_given, slots)

    def _states_given(self, slots: Any) -> None:
        taken: Ids = slots.tolist()
        self._fresh[STATES].update(taken)
        self.hooks.emit(Take(NEW, STATES, [*taken]))

    def _states_freed(self, slots: Any) -> None:
        who = self._who[-1]
        self.hooks.later(lambda slots: self._freed(STATES, who, slots.tolist()), slots)

    def _copied(self, source: Any, target: Any) -> None:
        copies: list[tuple[Use, Use]] = []

        def resolved(source: Any, target: Any) -> None:
            pairs = zip(source.tolist(), target.tolist(), strict=True)
            copies.extend((Use(pool=STATES, pages=[one]), Use(pool=STATES, pages=[other])) for one, other in pairs)

        self.hooks.later(resolved, source, target)
        self._streams.begin("copy_from", [], [], copies)

    def _cleared(self, slots: Any) -> None:
        writes: list[Use] = []
        self.hooks.later(lambda slots: writes.extend(Use(pool=STATES, pages=[at]) for at in slots.tolist()), slots)
        self._streams.begin("clear_slots", [], writes)

    def _adopt_states(self, stay: Stay, slots: Ids) -> None:
        """Transfer a request's fresh slots to it."""
        fresh = self._fresh[STATES]
        mine = [slot for slot in slots if slot in fresh]
        if mine:
            fresh.difference_update(mine)
            self.hooks.emit(Transfer(NEW, stay.name, STATES, [*mine]))

    def _move_states(
        self, stays: list[Stay | None], reqs: list[Any], starts: list[int], stops: list[int], kept: Kept | None
    ) -> None:
        """A launch advances the states of requests, and keeps some."""
        positions = [None] * len(reqs) if kept is None else kept.positions
        facts = list(zip(stays, starts, stops, positions, strict=True))
        rests = [
            [() if at is None else self._rest(req, at) for at in (start, stop, keeps)]
            for req, (_, start, stop, keeps) in zip(reqs, facts, strict=True)
        ]
        reads: list[Use] = []
        writes: list[Use] = []

        def resolved(working: Any, tracked: Any, slots: Any) -> None:
            own = zip(working.tolist(), [()] * len(facts) if tracked is None else tracked.tolist(), strict=True)
            into = [0] * len(facts) if slots is None else slots.tolist()
            for (stay, start, stop, keeps), rest, (slot, further), other in zip(facts, rests, own, into, strict=True):
                if stay is None:
                    continue
                self._adopt_states(stay, [slot, *further])
                if start:
                    reads.append(self._state(stay, slot, self._label(stay, start, rest[0])))
                stay.state = stop, self._label(stay, stop, rest[1])
                writes.append(self._state(stay, slot, stay.state[1]))
                if keeps is not None:
                    writes.append(self._state(stay, other, self._label(stay, keeps, rest[2])))

        rows = [0 if stay is None else stay.row for stay in stays]
        self.hooks.later(resolved, *self._table.states(rows), None if kept is None else kept.slots)
        self._streams.begin("forward_batch_generation states", reads, writes, reads_own_writes=False)

    def _state(self, stay: Stay, slot: int, label: str) -> Use:
        return Use(pool=STATES, pages=[slot], labels=[label], holder=stay.name)

    def _rest(self, req: Any, position: int) -> Rest:
        start, prompt = position - position % self._size, req.origin_input_ids
        if start == position:
            return ()
        known = len(prompt)
        return [*prompt[start:position], *req.output_ids[max(0, start - known) : max(0, position - known)]]

    def _label(self, stay: Stay, position: int, rest: Rest) -> str:
        """The label of the state after so many tokens. A label from before the last token was known stays the same."""
        if stay.state is not None and stay.state[0] == position:
            return stay.state[1]
        page, further = divmod(position, self._size)
        (label,) = stay.labels((), page - 1, page) if page else (stay.whose,)
        if not further:
            return label
        return chained(label, ("state", *rest)) if len(rest) == further else f"{stay.name}@{position}"
