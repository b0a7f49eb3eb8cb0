"""sglang-jax's own objects, and the state that they report."""

from collections import Counter
from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

from kvattach.sglang_jax.modules import Engine
from kvconform.scheduler_state import Entry, Room, SchedulerState
from kvlab.sglang_jax.server import Worker, arguments, logits, scheduler
from kvspec.events import Config, Figures, HolderView, Refusal, SnapshotAnswer
from kvspec.pages import Runs, ceil_align, compress

UNLIMITED = 1 << 40
"""More tokens than any request needs."""


class Memory:
    """One scheduler with its rows, pages and tree. Answers are made from the state that these report."""

    engine: ClassVar[Engine]

    def __init__(self, config: Config) -> None:
        """Make the scheduler and its memory of these sizes."""
        self.config = config
        self.scheduling = SchedulerState(config)
        worker = _Worker(self.engine, config)
        server = arguments(
            page_size=config.page_size,
            longest=config.max_context_len,
            chunk=config.page_size,
            overlap=True,
            radix=config.prefix_cache,
        )
        self.scheduler = scheduler(self.engine, server, worker, SimpleNamespace(send_pyobj=lambda _: None))
        self.scheduler.policy = SimpleNamespace(calc_priority=lambda _: None)
        self.rows, self.allocator, self.tree = worker.rows, worker.allocator, self.scheduler.tree_cache
        # Eviction is an operation of its own here, and allocation evicts nothing.
        self.tree.evict = lambda *_, **__: None

    def report(self, mode: Literal["idle", "busy"]) -> Figures:
        """The figures that its own memory check adds up."""
        holders = self._holders()
        if mode == "idle" and holders:
            raise Refusal("OP-1", f"{len(holders)} requests hold memory: this is not idle")
        size = self.config.page_size
        return Figures(
            available=int(self.allocator.available_size()),
            evictable=int(self.tree.evictable_size()) if self.config.prefix_cache else 0,
            protected=int(self.tree.protected_size()) if self.config.prefix_cache else 0,
            session_held=0,
            uncached=sum(ceil_align(_allocated(entry), size) - self._protected(entry) for entry in holders.values()),
            rows_available=len(self.rows.free_slots),
            rows_requests=len(holders),
            rows_sessions=0,
        )

    def snapshot(self) -> SnapshotAnswer:
        """The whole state that its objects report."""
        holders = self._holders()
        return SnapshotAnswer(
            rows={int(entry.req.req_pool_idx): self._slots_of(entry) for entry in holders.values()},
            free_pages=compress(sorted(self._free().elements())),
            store_pages=compress(sorted(self._store_pages())),
            requests={name: self._view(entry) for name, entry in holders.items()},
            sessions={},
        )

    def _holders(self) -> dict[str, Entry]:
        """The running requests. Before 994 a retracted request still names its row, so the row does not decide."""
        return {name: entry for name, entry in self.scheduling.entries.items() if entry.run is not None}

    def _view(self, entry: Entry) -> HolderView:
        allocated = _allocated(entry)
        committed = int(getattr(entry.req, "kv_committed_len", allocated))
        return HolderView(int(entry.req.req_pool_idx), self._protected(entry), committed, allocated)

    def _protected(self, entry: Entry) -> int:
        """Tokens of a request's row that the tree owns. Before 994 only the last match shows this."""
        req, size = entry.req, self.config.page_size
        protected = getattr(req, "cache_protected_len", None)
        return int(req.last_matched_prefix_len) // size * size if protected is None else int(protected)

    def _slots_of(self, entry: Entry) -> Runs:
        return compress(self.rows.req_to_token[entry.req.req_pool_idx, : _allocated(entry)].tolist())

    def _store_pages(self) -> Iterable[int]:
        size = self.config.page_size
        root = getattr(self.tree, "root_node", None)
        waiting = [] if root is None else list(root.children.values())
        while waiting:
            node = waiting.pop()
            waiting.extend(node.children.values())
            yield from (slot // size for slot in node.value.tolist()[::size])

    def _free(self) -> Counter[int]:
        """The free pages; a page that was freed twice counts twice."""
        if self.config.page_size == 1:
            return Counter(self.allocator.free_slots[0].tolist())
        return Counter([*self.allocator.free_pages[0].tolist(), *self.allocator.release_pages[0].tolist()])

    def _freed(self, before: Counter[int]) -> Runs:
        """The pages that have become free since `before`."""
        return compress(sorted((self._free() - before).elements()))

    def _room(self) -> Room:
        return Room(self.allocator.available_size() // self.config.page_size, len(self.rows.free_slots))

    def _pages_of(self, req: Any, start: int, end: int) -> list[int]:
        """The pages of the positions from the first whole page after `start` up to `end`."""
        size = self.config.page_size
        slots = self.rows.req_to_token[req.req_pool_idx, ceil_align(start, size) : end : size].tolist()
        return [slot // size for slot in slots]


def _allocated(entry: Entry) -> int:
    """The positions of its row that a request has slots for. Before 994 the request does not record their number."""
    assert entry.run is not None, "only a running request holds memory"
    return int(getattr(entry.req, "kv_allocated_len", entry.run.committed))


class _Worker(Worker):
    """A worker whose tokens the adapter sets, for the one request whose result is processed."""

    def __init__(self, engine: Engine, config: Config) -> None:
        super().__init__(
            engine,
            rows=config.num_rows,
            context=config.max_context_len,
            pages=config.num_pages,
            page_size=config.page_size,
        )
        self._config = config
        self.token = 0

    def get_worker_info(self) -> tuple[Any, ...]:
        size = self._config.num_pages * self._config.page_size
        return self.info(
            tokens=size, budget=UNLIMITED, running=UNLIMITED, longest=UNLIMITED, chunk=self._config.page_size
        )

    def resolve_last_batch_result(self, *_: Any) -> tuple[Any, list[int], int]:
        return logits(), [self.token], 0
