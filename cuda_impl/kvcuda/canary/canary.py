"""The canary: labels for all slots of a memory, verified and stamped by one launch before each forward pass.

Nothing here waits for the device, reads from it or allocates on it after the start.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import numpy as np
import torch

from kvcuda.arrays import Ints
from kvcuda.backend import DEVICE
from kvcuda.canary import kernels
from kvcuda.canary import words as layout
from kvcuda.canary.pools import Known, Pass, Pool, States
from kvcuda.canary.violations import Held, Ring, Violation, launch_of, number_of
from kvcuda.canary.words import ViolationKind
from kvcuda.memory_events import Listener, Uses
from kvcuda.staging import Slot, Staging, padded
from kvcuda.streams import EagerStreams, Event, Stream, Streams

BLOCK = 256
"""Positions that a program verifies together."""
PROGRAMS = 2048
"""The approximate number of programs in a launch. They fill a GPU, and empty programs cost little."""
NAMES = 1 << 16
"""The number of requests whose names are remembered."""


class CallerStreams:
    """The stream that is current at each call, in both roles; a `kvcuda.streams.Streams`."""

    listener: Listener | None = None

    def __init__(self) -> None:
        """Nothing is queued."""
        self.scheduler: Stream = self
        self.forward: Stream = self

    def event(self) -> Event:
        """An event, recorded nowhere."""
        return torch.cuda.Event() if DEVICE == "cuda" else EagerStreams().event()

    def run(self, work: Callable[[], object], uses: Uses | None = None) -> None:
        """Enqueue work."""
        work()

    def record(self, event: Event) -> None:
        """Put an event behind all work so far."""
        if isinstance(event, torch.cuda.Event):
            event.record()

    def wait(self, event: Event) -> None:
        """Hold the stream until the event has passed."""
        if isinstance(event, torch.cuda.Event):
            torch.cuda.current_stream().wait_event(event)

    def synchronize(self) -> None:
        """Let the host wait until all is done."""
        if DEVICE == "cuda":
            torch.cuda.synchronize()


class Seat(NamedTuple):
    """Where the canary keeps the labels of a request's last positions."""

    row: int
    number: int
    """The request's number, which its stamps carry."""


class Staged(NamedTuple):
    """A launch whose words are written, but which is not enqueued yet."""

    slot: Slot
    used: int
    """Words, in units of int32."""
    requests: int
    """Padding included."""
    programs: int
    """Programs for each request and pool."""
    tokens: int
    batch: Pass


class Canary:
    """Labels of all slots of a memory's pools.

    Forward passes use the first `passes` pools, in the order of `Pass.places`. Only copies use the others, those of a
    host tier.
    """

    def __init__(
        self,
        pools: Sequence[Pool],
        *,
        rows: int,
        max_requests: int,
        share: int = 1,
        passes: int | None = None,
        new_wide: bool = True,
        streams: Streams | None = None,
        ring: int = 1024,
    ) -> None:
        """Nothing is written yet.

        At most `rows` requests are remembered at a time, and at most `max_requests` are in a pass. Each launch verifies
        the next one of `share` blocks of positions, and always the last position. New slots are int64 with `new_wide`,
        else int32. Passes run on the forward stream of `streams`; without `streams`, on the current stream.

        Raises:
            ValueError: `share` or `max_requests` is below 1, or there are fewer rows than requests.
        """
        if share < 1 or rows < max_requests or max_requests < 1:
            raise ValueError(f"share {share}, {rows} rows for {max_requests} requests")
        streams = streams or CallerStreams()
        self.pools = list(pools)
        self.passes = len(self.pools) if passes is None else passes
        self.share = share
        self.launches = 0
        """Launches so far; the last one has this number."""
        self.ring = Ring(ring)
        self._stream = streams.forward
        self._new_wide = new_wide
        self._max_requests = max_requests
        self._rows = rows
        slots = sum(pool.slots for pool in self.pools)

        def column(dtype: torch.dtype) -> torch.Tensor:
            return torch.zeros(slots, dtype=dtype, device=DEVICE)

        self.labels, self.writers, self.sealed = column(torch.int64), column(torch.int64), column(torch.int64)
        self.tokens, self.positions = column(torch.int32), column(torch.int32)
        self._heads: torch.Tensor = torch.zeros(self.passes * rows * layout.RECENT, dtype=torch.int64, device=DEVICE)
        self.bases = [sum(pool.slots for pool in self.pools[:number]) for number in range(len(self.pools))]
        """Where each pool's slots begin in the columns."""
        self._statics, self._spans = self._described()
        self._bytes = any(pool.spans for pool in self.pools)
        self._entry = layout.REQUEST_WORDS + self.passes * layout.PLACE_WORDS
        self._header = layout.HEADER + self.passes * layout.POOL_WORDS
        self._place = layout.REQUEST_WORDS
        words = 2 * (self._header + max_requests * self._entry)
        self._staging = Staging(words, DEVICE, streams)
        self._seats: dict[str, Seat] = {}
        self._free = list(range(rows - 1, -1, -1))
        self._names: dict[int, str] = {}
        self._numbers = 0
        self._last: tuple[list[str], Ints] = ([], np.zeros((0, 2), dtype=np.int64))

    def _described(self) -> tuple[torch.Tensor, torch.Tensor]:
        """The words that describe the pools to the kernels, and the pools' spans. They never change."""
        statics: list[list[int]] = []
        spans: list[list[int]] = []
        for pool, base in zip(self.pools, self.bases, strict=True):
            unit = pool.page_size if pool.block_tables else 1
            translation = 0 if pool.translation is None else pool.translation.data_ptr()
            found_by = [pool.kind, base, pool.slots, unit, pool.window, translation]
            statics.append([*found_by, len(spans), len(pool.spans), pool.page_size])
            spans += [list(span) for span in pool.spans]
        device = torch.tensor(statics, dtype=torch.int64, device=DEVICE)
        return device, torch.tensor(spans or [[0] * layout.SPAN_WORDS], dtype=torch.int64, device=DEVICE)

    # Requests

    def leave(self, name: str) -> None:
        """A request is over: its row is free. Violations can still name it until `NAMES` newer requests have come."""
        seat = self._seats.pop(name, None)
        if seat is not None:
            self._free.append(seat.row)
            self._last = ([], self._last[1])

    def _seats_of(self, batch: Pass) -> Ints:
        """The row and the number of each request, int64 [requests, 2].

        Raises:
            ValueError: a request is new, but `batch.known` does not mark it as `fresh`.
        """
        names = list(batch.names)
        if names == self._last[0]:
            return self._last[1]
        for index, name in enumerate(names):
            if name not in self._seats:
                if not batch.known.get(index, _UNKNOWN).fresh:
                    raise ValueError(f"request {name} was not in a pass before, and nothing is known of it")
                self._seats[name] = self._seat(name, names)
        seats = np.array([self._seats[name] for name in names], dtype=np.int64)
        self._last = names, seats
        return seats

    def _seat(self, name: str, present: Sequence[str]) -> Seat:
        """A row for a request. If none is free, the longest remembered request that is not present loses its row."""
        if not self._free:
            self.leave(next(other for other in self._seats if other not in present))
        self._numbers += 1
        self._names[self._numbers] = name
        self._names.pop(self._numbers - NAMES, None)
        return Seat(self._free.pop(), self._numbers)

    # Launches

    def launch(self, batch: Pass) -> int:
        """Verify the slots that a pass reads and stamp those that it writes, before it runs. Returns the launch number.

        Raises:
            ValueError: as `stage`; nothing was enqueued.
        """
        staged = self.stage(batch)
        self.enqueue(staged)
        return self.launches

    def fixed_words(self, requests: int) -> torch.Tensor:
        """Words on the device for a launch of `requests` requests in a CUDA graph. All of them are padding at first.

        Before each replay, stage a launch with as many requests and copy it there: `slot.upload_to(words, used)`.
        """
        words = torch.zeros(padded(2 * (self._header + requests * self._entry)), dtype=torch.int32, device=DEVICE)
        rows = words.view(torch.int64)[self._header : self._header + requests * self._entry : self._entry]
        rows.fill_(_PADDING)
        return words

    def stage(self, batch: Pass, padded_to: int = 0) -> Staged:
        """The host's part of a launch; it is filled up to `padded_to` requests.

        Raises:
            ValueError: the pass has no request, more than `max_requests`, or not one place for each pool.
        """
        requests = len(batch.names)
        total = max(requests, padded_to)
        if not 0 < requests <= total <= self._max_requests or len(batch.places) != self.passes:
            raise ValueError(f"{requests} requests with {len(batch.places)} pools")
        seats = self._seats_of(batch)
        slot = self._staging.take()
        words = slot.words.view(np.int64)
        counts = batch.counts
        ends = counts.cumsum()
        tokens = int(ends[-1])
        self.launches += 1
        words[:4] = self.launches, requests, tokens, self.share
        entries = words[self._header : self._header + total * self._entry].reshape(total, self._entry)
        entries[requests:, 0] = _PADDING
        entries = entries[:requests]
        entries[:, 0:2] = seats
        entries[:, 2] = ends - counts
        entries[:, 3] = counts
        entries[:, 4] = -1
        entries[:, 5:7] = 0
        for index, (position, label, fresh) in batch.known.items():
            entries[index, 4:7] = position, label, fresh
        at = self._place
        for number, places in enumerate(batch.places):
            pool = words[layout.HEADER + number * layout.POOL_WORDS :]
            if isinstance(places, States):
                pool[:2] = 0
                for field, column in enumerate(places):
                    entries[:, at + field] = column
            else:
                pool[:2] = places.table.data_ptr(), places.new_slots.data_ptr()
                entries[:, at] = places.offsets
                entries[:, at + 2] = 0
            at += layout.PLACE_WORDS
        blocks = -(-batch.longest // BLOCK) if batch.longest else PROGRAMS
        programs = max(1, min(blocks, PROGRAMS // (total * self.passes)))
        return Staged(slot, 2 * (self._header + total * self._entry), total, programs, tokens, batch)

    def enqueue(self, staged: Staged) -> None:
        """Enqueue a staged launch on the stream of passes."""

        def work() -> None:
            staged.slot.upload(staged.used)
            batch = staged.batch
            self.run_kernel(staged.slot.device, staged.requests, staged.programs, batch.input_ids, batch.positions)

        self._stream.run(work)
        self._stream.record(staged.slot.passed)

    def run_kernel(
        self, words: torch.Tensor, requests: int, programs: int, input_ids: torch.Tensor, positions: torch.Tensor
    ) -> None:
        """Enqueue the kernel on the current stream; `words` is on the device. A CUDA graph captures this."""
        kernels.watch_kernel[(requests, self.passes, 1 + programs)](
            words.view(torch.int64),
            self._statics,
            self._spans,
            self.labels,
            self.tokens,
            self.positions,
            self.writers,
            self.sealed,
            self._heads,
            self.ring.entries,
            self.ring.count,
            input_ids,
            positions,
            self.ring.capacity,
            self._rows,
            POOLS=self.passes,
            BLOCK=BLOCK,
            NEW_WIDE=self._new_wide,
            BYTES=self._bytes,
        )

    def seal(self, staged: Staged) -> None:
        """After a pass, digest the bytes that it has written. The launch's words must still be in its slot."""
        self._stream.run(lambda: self.run_seal(staged.slot.device, staged.tokens))
        self._stream.record(staged.slot.passed)

    def run_seal(self, words: torch.Tensor, tokens: int) -> None:
        """Enqueue its kernel on the current stream. A CUDA graph captures this."""
        kernels.seal_kernel[(-(-tokens // BLOCK), self.passes)](
            words.view(torch.int64),
            self._statics,
            self._spans,
            self.sealed,
            POOLS=self.passes,
            BLOCK=BLOCK,
            NEW_WIDE=self._new_wide,
        )

    def copy(self, source: str, sources: torch.Tensor, target: str, targets: torch.Tensor) -> None:
        """Copy labels and digests along with the content of slots, in a pool or between two.

        `sources` and `targets` are equally many slot indices on the device. The copy of the labels is enqueued on the
        current stream, which must be the stream of the content's copy.
        """
        one, other = self.number(source), self.number(target)
        kernels.copy_kernel[(-(-len(sources) // BLOCK),)](
            sources,
            targets,
            self.labels,
            self.tokens,
            self.positions,
            self.writers,
            self.sealed,
            self.bases[one],
            self.pools[one].slots,
            self.bases[other],
            self.pools[other].slots,
            len(sources),
            BLOCK=BLOCK,
        )

    def number(self, pool: str) -> int:
        """The number of a pool.

        Raises:
            KeyError: there is none of that name.
        """
        for number, one in enumerate(self.pools):
            if one.name == pool:
                return number
        raise KeyError(pool)

    # Violations

    def poll(self) -> list[Violation]:
        """The violations since the last call. Never waits: a launch under way reports with a later call.

        One launch reports one violation for each request and pool, at the first wrong position. The check of later
        positions depends on the labels before them, so a mismatch there proves nothing.
        """
        grouped: dict[tuple[int, str, str, bool], list[Violation]] = {}
        for one in map(self._violation, self.ring.take()):
            grouped.setdefault((one.launch, one.pool, one.request, one.kind is ViolationKind.WRITES), []).append(one)
        firsts = [(min(group, key=_place), sum(one.times for one in group)) for group in grouped.values()]
        return sorted((one._replace(times=times) for one, times in firsts), key=_place)

    def _violation(self, words: list[int]) -> Violation:
        _, code, launch, number, pool, position, slot, expected, found, token, place, writer, times = words[:13]
        kind = ViolationKind(code)
        held = None
        if found and writer:
            held = Held(place, token, self._name(number_of(writer)), launch_of(writer))
        name = self.pools[pool].name if len(self.pools) > 1 else ""
        return Violation(kind, launch, name, self._name(number), position, slot, expected, found, held, times)

    def _name(self, number: int) -> str:
        return self._names.get(number, f"number {number}")


def _place(violation: Violation) -> tuple[int, int, str]:
    return violation.launch, violation.position, violation.request


_UNKNOWN = Known(-1, 0)
_PADDING = -1
