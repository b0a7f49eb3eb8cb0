"""Hooks into vLLM's older model runner: how many tokens a hybrid model accepts, and the states that it goes on from.

A pass verifies drafts, and writes a recurrent state for each of its last tokens. The device counts the accepted ones of
each request, and copies the counts to pinned memory, a row for each request. There the host moves rows as requests come
and go, and reads them for the next pass, which goes on from the state of the last accepted token.
"""

import sys
from collections.abc import Callable
from typing import Any

from kvattach.buffers import BUFFERS, Buffers
from kvattach.hooks import Hooks, Trace
from kvattach.streams import Streams
from kvspec.memory.events import Idle, Label, Pages, Pool, Release, Take, Use

STATES = "states"
"""The pool of running states: as many for each request as a pass may write."""


class Rows:
    """The counts on the host. Each access by the engine is observed."""

    def __init__(self, counts: Any, seen: Callable[[str, list[int], bool], None]) -> None:
        """Call `seen(place, rows, written)` at each access."""
        self._counts, self._seen = counts, seen
        self._numbers = counts.cumsum() - counts.cumsum()[0]
        self._numbers[:] = range(len(counts))

    def __getitem__(self, key: Any) -> Any:
        """Read rows."""
        self._touches(key, written=False)
        return self._counts[key]

    def __setitem__(self, key: Any, value: Any) -> None:
        """Write rows."""
        self._touches(key, written=True)
        self._counts[key] = value

    def _touches(self, key: Any, *, written: bool) -> None:
        self._seen(sys._getframe(2).f_code.co_name, sorted({int(row) for row in self._numbers[key].flat}), written)


class Accepted:
    """Emits the events of one model runner of this process, from its creation on."""

    def __init__(self, trace: Trace, stream: Any, event: Any, cuda: Any) -> None:
        """Install the hooks. `stream` and `event` are the runner's classes, `cuda` knows the current stream.

        The hooks read the device's counts as they are queued: the device runs on a CPU.
        """
        from vllm.v1.worker.gpu_input_batch import InputBatch
        from vllm.v1.worker.gpu_model_runner import GPUModelRunner

        self.hooks = hooks = Hooks(trace)
        self._cuda = cuda
        self._streams = Streams(hooks, stream, event)
        self._buffers = Buffers(hooks, self._streams)
        self._free: Pages = []
        self._states: dict[str, Pages] = {}
        """Request -> its running states."""
        self._next: dict[str, Label] = {}
        """Request -> the state of its last accepted token."""
        self._passes = 0
        hooks.hook(InputBatch, "__init__", after=self._made)
        hooks.hook(GPUModelRunner, "_update_states", before=self._leave)
        hooks.hook(GPUModelRunner, "_prepare_inputs", after=self._launched)
        hooks.hook(GPUModelRunner, "_update_states_after_model_execute", before=self._counted)

    def _made(self, _: None, __: None, batch: Any, *___: Any, **____: Any) -> None:
        counts = batch.num_accepted_tokens_cpu
        self._free.clear()
        self._states.clear()
        self._next.clear()
        self._buffers.clear()
        self._streams.clear(self._cuda)
        self.hooks.trace.header(
            "vllm", {BUFFERS: self._buffers.pool, STATES: Pool(first_page=0, reads_own_writes=False)}
        )
        self._rows = self._buffers.use(*range(len(counts)))
        batch.num_accepted_tokens_cpu = Rows(counts, self._touched)

    def _touched(self, at: str, rows: list[int], written: bool) -> None:
        uses = [self._rows[row] for row in rows]
        self.hooks.guarded(self._buffers.host, at, **{"writes" if written else "reads": uses})

    # States

    def _leave(self, runner: Any, output: Any) -> None:
        """Requests end, or lose their memory."""
        resumed = output.scheduled_cached_reqs.resumed_req_ids
        for name in (*output.finished_req_ids, *(output.preempted_req_ids or ()), *resumed):
            self._next.pop(name, None)
            pages = self._states.pop(name, None)
            if pages is not None:
                self._free += pages
                self.hooks.emit(Release(name, STATES, pages))
        if not self._states:
            self.hooks.emit(Idle([BUFFERS]))

    def _launched(self, _: None, __: Any, runner: Any, *___: Any) -> None:
        """A pass is queued: it goes on from the states that the host's counts choose, and writes the next ones."""
        self._passes += 1
        most, reads, writes = 1 + runner.num_spec_tokens, [], []
        for row, name in enumerate(runner.input_batch.req_ids):
            if name not in self._states:
                self._take(name, most)
            pages = self._states[name]
            if name in self._next:
                count = int(runner.num_accepted_tokens.np[row])
                reads.append(Use(pool=STATES, pages=[pages[count - 1]], labels=[self._next[name]], holder=name))
            writes.append(Use(pool=STATES, pages=pages, labels=self._labels(name, most), holder=name))
        self._streams.begin("_prepare_inputs", reads, writes)

    def _take(self, name: str, most: int) -> None:
        if not self._free:
            first = most * len(self._states)
            self._free += range(first, first + most)
        self._states[name] = self._free[-most:]
        del self._free[-most:]
        self.hooks.emit(Take(name, STATES, self._states[name]))

    def _labels(self, name: str, most: int) -> list[Label]:
        return [f"{name} {self._passes}.{place}" for place in range(1, most + 1)]

    # Counts

    def _counted(self, runner: Any, sampled: Any, _: Any) -> None:
        """The device counts what the pass has accepted, and copies the counts to the host."""
        for name, tokens in zip(runner.input_batch.req_ids, sampled.tolist(), strict=True):
            accepted = sum(token != -1 for token in tokens)
            self._next[name] = self._labels(name, accepted)[-1]
        self._streams.begin("_update_states_after_model_execute", [], self._rows[: len(sampled)])
