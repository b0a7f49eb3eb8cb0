"""Hooks into nano-vllm: memory events of its block manager's reference counts and hashes.

A block's `ref_count` becomes a property, and the table of hashes a dict; both emit events. So events record the actual
changes: a block that is never freed shows as a leak, and one that is freed twice as a double free.
"""

from typing import Any

from kvattach.books import steps_between
from kvattach.hooks import Hooks, Trace
from kvattach.nano_vllm.modules import Engine
from kvattach.residency import Run
from kvspec.memory.events import (
    Begin,
    Count,
    Deliver,
    Drop,
    End,
    EndHolder,
    Idle,
    Map,
    Pool,
    Publish,
    Release,
    Share,
    Take,
    Unmap,
    Use,
)

POOL = "blocks"


class Mapped(Run):
    """One sequence from its allocation to its end or its preemption."""

    def __init__(self, name: str, seq: Any, block_size: int) -> None:
        """Begin without blocks."""
        super().__init__(name, block_size)
        self.seq = seq

    def mapped(self, first: int) -> Map:
        """The table from block `first` on."""
        table = self.seq.block_table
        labels = self.labels(self.seq.token_ids, first, len(table))
        return Map(self.name, self.name, POOL, first, table[first:], labels)

    def label_of(self, block: int) -> str:
        """The label of a block of this table, made from the tokens for which the engine publishes it."""
        index = self.seq.block_table.index(block)
        return self.labels(self.seq.token_ids, index, index + 1)[0]


class Attached:
    """Emits the events of one scheduler, from the creation of its block manager on."""

    def __init__(self, engine: Engine, trace: Trace, count_every: int = 1) -> None:
        """Install the hooks. The engine's own figures are emitted after every `count_every` steps.

        Those of a large memory are emitted less often.
        """
        self._every = count_every
        self.hooks = hooks = Hooks(trace)
        self._manager: Any = None
        self._runs: dict[int, Mapped] = {}
        self._who: Mapped | None = None
        self._taking = False
        self._launches = 0
        attached = self

        class Names(dict[int, int]):
            """The engine's table of hashes."""

            looked_up = -1

            def __getitem__(self, key: int) -> int:
                self.looked_up = key
                return super().__getitem__(key)

            def __setitem__(self, key: int, block: int) -> None:
                before = self.get(key)
                super().__setitem__(key, block)
                hooks.guarded(attached._named, key, block, before)

            def __delitem__(self, key: int) -> None:
                block = super().__getitem__(key)
                super().__delitem__(key)
                hooks.emit(Drop(POOL, [block], [str(key)]))

        def counted(block: Any) -> int:
            return int(block.counted)

        def count(block: Any, references: int) -> None:
            before = getattr(block, "counted", 0)
            block.counted = references
            hooks.guarded(attached._counted, block, before, references)

        manager, scheduler = engine.block_manager.BlockManager, engine.scheduler.Scheduler
        hooks.set(engine.block_manager.Block, "ref_count", property(counted, count))
        hooks.hook(manager, "__init__", after=lambda _, __, made, *___: self._made(made, Names()))
        hooks.hook(manager, "_allocate_block", before=self._take, after=self._taken)
        hooks.hook(manager, "allocate", before=self._acts, after=self._mapped)
        hooks.hook(manager, "may_append", before=self._acts, after=self._mapped)
        hooks.hook(manager, "deallocate", before=self._acts, after=self._left)
        hooks.hook(manager, "hash_blocks", before=self._acts)
        hooks.hook(scheduler, "is_finished", after=self._idles)
        for name in ("schedule", "postprocess"):
            hooks.watch(scheduler, name)
        hooks.hook(scheduler, "schedule", after=self._launched)
        hooks.hook(scheduler, "postprocess", before=self._completed, after=self._settled)

    def _made(self, manager: Any, names: dict[int, int]) -> None:
        self._runs.clear()
        manager.hash_to_block_id = names
        size = manager.block_size
        pool = Pool(page_size=size, num_pages=len(manager.blocks), first_page=0, label_size=size)
        self._every = steps_between(self._every, len(manager.blocks))
        self.hooks.trace.header("nano-vllm", {POOL: pool})
        self._manager = manager

    def _acts(self, manager: Any, seq: Any, *_: Any) -> int:
        """The number of a sequence's blocks before the block manager acts for it."""
        run = self._runs.get(seq.seq_id)
        if run is None:
            run = self._runs[seq.seq_id] = Mapped(f"{seq.seq_id}.{self._launches}", seq, manager.block_size)
        self._who = run
        return len(seq.block_table)

    def _take(self, *_: Any) -> None:
        self._taking = True

    def _taken(self, *_: Any) -> None:
        self._taking = False

    def _counted(self, block: Any, before: int, references: int) -> None:
        if self._manager is None or self._who is None:
            return
        name, pages = self._who.name, [block.block_id]
        for _ in range(before, references):
            if self._taking:
                self.hooks.emit(Take(name, POOL, pages))
            else:
                self.hooks.emit(Share(name, POOL, pages, [str(self._manager.hash_to_block_id.looked_up)]))
        for _ in range(references, before):
            self.hooks.emit(Release(name, POOL, pages))

    def _named(self, key: int, block: int, before: int | None) -> None:
        if before is not None:
            self.hooks.emit(Drop(POOL, [before], [str(key)]))
        assert self._who is not None
        self.hooks.emit(Publish(POOL, [block], [str(key)], [self._who.label_of(block)]))

    def _mapped(self, before: int, _: None, manager: Any, seq: Any, *__: Any) -> None:
        if len(seq.block_table) > before:
            self.hooks.emit(self._runs[seq.seq_id].mapped(before))

    def _left(self, _: int, __: None, manager: Any, seq: Any) -> None:
        name = self._runs.pop(seq.seq_id).name
        self.hooks.emit(Unmap(name))
        self.hooks.emit(EndHolder(name))

    def _launched(self, _: None, answer: tuple[list[Any], bool], scheduler: Any) -> None:
        self._launches += 1
        reads, writes = [], []
        for seq in answer[0]:
            run = self._runs[seq.seq_id]
            for learnt in run.grown(run.seq.token_ids):
                self.hooks.emit(learnt)
            start = seq.num_cached_tokens if answer[1] else len(seq) - 1
            stop = start + seq.num_scheduled_tokens
            reads.append(Use(table=run.name, stop=stop))
            writes.append(Use(table=run.name, start=start, stop=stop))
        self.hooks.emit(Begin(self._launches, "device", reads, writes))

    def _completed(self, scheduler: Any, sequences: list[Any], *_: Any) -> None:
        self.hooks.emit(End(self._launches))
        for seq in sequences:
            if seq.num_cached_tokens + seq.num_scheduled_tokens < seq.num_tokens:
                continue
            self.hooks.emit(Deliver(self._launches, self._runs[seq.seq_id].name))

    def _idles(self, _: None, finished: bool, scheduler: Any) -> None:
        if finished:
            self.hooks.emit(Idle())

    def _settled(self, *_: Any) -> None:
        if self._launches % self._every:
            return
        manager = self._manager
        named = set(manager.hash_to_block_id.values())
        self.hooks.emit(
            Count(
                POOL,
                free=[block for block in manager.free_block_ids if block not in named],
                cached=[block for block in manager.free_block_ids if block in named],
                held=sorted(manager.used_block_ids),
                references={block: manager.blocks[block].ref_count for block in manager.used_block_ids},
            )
        )
