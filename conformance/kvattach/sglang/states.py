"""Hooks into SGLang's recurrent states: slots of requests and of the tree, copies, and the effects of launches.

A state has the label of the page that ends at its position. A launch reads a request's state, advances it in its slot,
and may keep an intermediate state in another slot, from which the tree takes it.
"""

from typing import Any, NamedTuple

from kvattach.hooks import Trace, chained
from kvattach.sglang.release import Release
from kvattach.sglang.storage import Storage
from kvattach.sglang.view import NEW, STATES, Ids, Stay
from kvspec.memory.events import Take, Transfer, Use


class Kept(NamedTuple):
    """A state that a launch keeps."""

    slot: int
    position: int
    """The number of tokens that it has seen."""


class States(Storage):
    """Follows recurrent states."""

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
            taken: Ids = slots.tolist()
            self._fresh[STATES].update(taken)
            self.hooks.emit(Take(NEW, STATES, [*taken]))

    def _states_freed(self, slots: Any) -> None:
        self._freed(STATES, self._who[-1], slots.tolist())

    def _copied(self, source: Any, target: Any) -> None:
        copies = [
            (Use(pool=STATES, pages=[one]), Use(pool=STATES, pages=[other]))
            for one, other in zip(source.tolist(), target.tolist(), strict=True)
        ]
        self._streams.begin("copy_from", [], [], copies)

    def _cleared(self, slots: Any) -> None:
        self._streams.begin("clear_slots", [], [Use(pool=STATES, pages=[slot]) for slot in slots.tolist()])

    def _adopt_states(self, stay: Stay, req: Any) -> None:
        """Transfer a request's fresh slots to it."""
        fresh, record = self._fresh[STATES], req.kv
        slots: Ids = [] if record.mamba_pool_idx is None else [int(record.mamba_pool_idx)]
        if record.mamba_ping_pong_track_buffer is not None:
            slots += record.mamba_ping_pong_track_buffer.tolist()
        mine = [slot for slot in slots if slot in fresh]
        if mine:
            fresh.difference_update(mine)
            self.hooks.emit(Transfer(NEW, stay.name, STATES, [*mine]))

    def _move_states(self, moves: list[tuple[Stay, Any, int, int]], kept: list[Kept | None]) -> None:
        """A launch advances the states of requests, and keeps some."""
        reads, writes = [], []
        for (stay, req, start, stop), keeps in zip(moves, kept, strict=True):
            self._adopt_states(stay, req)
            tokens = [*req.origin_input_ids, *req.output_ids]
            slot = int(req.kv.mamba_pool_idx)
            if start:
                reads.append(self._state(stay, slot, self._label(stay, tokens, start)))
            stay.state = stop, self._label(stay, tokens, stop)
            writes.append(self._state(stay, slot, stay.state[1]))
            if keeps is not None:
                writes.append(self._state(stay, keeps.slot, self._label(stay, tokens, keeps.position)))
        self._streams.begin("forward_batch_generation states", reads, writes, reads_own_writes=False)

    def _state(self, stay: Stay, slot: int, label: str) -> Use:
        return Use(pool=STATES, pages=[slot], labels=[label], holder=stay.name)

    def _label(self, stay: Stay, tokens: list[int], position: int) -> str:
        """The label of the state after so many tokens. A label from before the last token was known stays the same."""
        if stay.state is not None and stay.state[0] == position:
            return stay.state[1]
        page, further = divmod(position, self._size)
        (label,) = stay.labels(tokens, page - 1, page) if page else (stay.whose,)
        if not further:
            return label
        rest = tokens[page * self._size : position]
        return chained(label, ("state", *rest)) if len(rest) == further else f"{stay.name}@{position}"
