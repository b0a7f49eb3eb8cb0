"""Hooks into MAX's cache: claims of requests, and their reads and writes through their tables.

The content of a block is a label of each of its pages: the name of the leaf, the request's salt, the weights of its
adapter, and the tokens up to the block's end. A recurrent state has the label of the block that ends at its position.
With drafts the graph of a pass computes its place: the hooks are given it. Rejected drafts have labels that no read
expects.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import count
from typing import Any, NamedTuple

from kvattach.hooks import Trace, chained
from kvattach.max.modules import Engine
from kvattach.max.transfers import Transfers
from kvattach.residency import Run
from kvspec.memory.events import Deliver, End, EndHolder, OpId, Unify, Use

DRAFTER = "draft"
"""The leaf of a drafter that has KV of its own."""


class Part(NamedTuple):
    """The part of one request in a pass, in tokens. Behind drafts in flight the host does not know where it begins."""

    start: int
    tokens: int
    drafts: int = 0
    """The drafts that it verifies, after its tokens."""
    accepted: int = 0
    proposed: int = 0
    """The positions after the accepted drafts at which the drafter computes."""

    @property
    def stop(self) -> int:
        """The end of the tokens and accepted drafts."""
        return self.start + self.tokens + self.accepted

    def ends(self, leaf: str) -> int:
        """The end of the positions that the pass writes in a leaf."""
        proposed = self.stop + self.proposed if leaf == DRAFTER else 0
        return max(self.start + self.tokens + self.drafts, proposed)


class Stay(Run):
    """A request from its claim to its release."""

    def __init__(self, name: str, context: Any, page_size: int, future: int, weights: str) -> None:
        """Begin without blocks. `future` is the placeholder of a token that is not sampled yet."""
        super().__init__(name, page_size)
        self.context, self._future, self.weights = context, future, weights
        self.salt = salted(context, weights)
        self.reached = 0
        """The end of the accepted tokens that the queued passes compute."""
        self.states: dict[int, str] = {}
        """Position -> the label of a state that was made before its last token was known."""

    @property
    def place(self) -> int:
        """The position of the next token to compute. The host counts the accepted drafts later."""
        return max(self.reached, int(self.context.tokens.processed_length))

    @property
    def tokens(self) -> list[int]:
        """The known tokens."""
        tokens: list[int] = self.context.tokens.all.tolist()
        return tokens[:-1] if tokens[-1] == self._future else tokens


def salted(context: Any, weights: str) -> str:
    """The part of a label that is the same for all tokens of a request, computed with an adapter's weights."""
    return (context.cache_salt or "") + (f"[{weights}]" if weights else "")


@dataclass
class Launch:
    """A forward pass of all replicas."""

    last: list[OpId] = field(default_factory=list)
    """The last operation of each replica."""
    results: dict[str, tuple[OpId, str]] = field(default_factory=dict)
    """Request -> the operation that computes its token, and its holder."""


class Attached(Transfers):
    """Emits the events of one cache, from its creation on."""

    def __init__(self, engine: Engine, trace: Trace) -> None:
        """Install the hooks."""
        super().__init__(engine, trace)
        self._future: int = engine.context.FUTURE_TOKEN
        self._stays: dict[str, Stay] = {}
        self._numbers = count(1)
        """Numbers of claims: a request may be claimed several times, and each claim has its own name."""
        self._tables: dict[str, Any] = {}
        """Leaf -> the last staged table."""
        self._staged: dict[int, dict[str, Any]] = {}
        """Replica -> the tables of its pass."""
        self.launch = Launch()
        """The last pass."""
        self.lora: Any = None
        """The manager of adapters, if there is one."""
        self.routed: dict[str, str] = {}
        """Request -> the adapter's weights that the next pass computes it with, if there are adapters."""
        self.drafting = False
        """Whether a pass is queued with the places that its graph computes, by `queued`."""
        self._batches: Sequence[Any] = []
        self._results: dict[str, tuple[OpId, str]] = {}
        hooks, cache, manager = self.hooks, engine.cache.JengaKVCacheManager, engine.manager.JengaBlockManager
        hooks.hook(manager, "claim", before=self._claimed)
        for owner, name in ((manager, "alloc"), (manager, "release"), (cache, "step")):
            self.acting.within(owner, name, lambda _, context: self._stay(context).name)
        hooks.hook(manager, "release", before=lambda _, context: self._stay(context), after=self._released)
        hooks.hook(engine.constructor.TextBatchConstructor, "release_request", after=self._left)
        for group in (engine.groups.KVGroupCoordinatorInterface, engine.recurrent.RecurrentKVGroupCoordinator):
            hooks.watch(group, "grow")  # `alloc` has checked for room before
        hooks.watch(engine.scratch.ScratchKVGroupCoordinator, "grow")
        hooks.hook(manager, "_compute_hashes_for_request", after=self._hashed)
        for leaf in (engine.params.PagedKVLeafRegion, engine.params.RecurrentKVLeafRegion):
            hooks.hook(leaf, "write_staged_inputs", after=self._table)
        hooks.hook(cache, "_compute_kv_cache_assignments", after=self._assigned)
        hooks.hook(cache, "runtime_inputs", after=lambda _, __, of, batches, **___: self._prepared(batches))
        hooks.hook(cache, "_copy_rows", before=self._states_copied)
        hooks.hook(cache, "_wipe_rows", before=self._states_wiped)

    def _made(self, _: None, __: None, cache: Any, **___: Any) -> None:
        super()._made(None, None, cache)
        self._leaves = cache._leaves
        for kept in (self._stays, self._tables, self._staged, self._results, self.routed):
            kept.clear()

    # Requests

    def _claimed(self, manager: Any, context: Any, *_: Any, **__: Any) -> None:
        request = str(context.request_id)
        if request not in self._stays:
            self._stays[request] = Stay(
                f"{request}.{next(self._numbers)}", context, self._size, self._future, self._weights(context)
            )

    def _weights(self, context: Any) -> str:
        """The weights that an adapter's name stands for now."""
        adapter = None if self.lora is None else self.lora._loras.get(context.model_name)
        return "" if adapter is None else str(adapter.path)

    def _stay(self, context: Any) -> Stay:
        return self._stays[str(context.request_id)]

    def _released(self, stay: Stay, *_: Any) -> None:
        del self._stays[str(stay.context.request_id)]
        self.hooks.emit(EndHolder(stay.name))

    def _left(self, _: None, __: None, constructor: Any, request: Any) -> None:
        """A request has left the scheduler, which releases its blocks."""
        stay = self._stays.get(str(request))
        if stay is not None:
            self._released(stay)

    # Content

    def _hashed(self, _: None, names: list[bytes], manager: Any, context: Any) -> None:
        """The hashes of a request's blocks are known, and so is their content."""
        stay = self._stay(context)
        self._learns(stay)
        for name, label in zip(names, stay.labels([], 0, len(names)), strict=True):
            self.contents[name] = stay.salt + label

    def _learns(self, stay: Stay) -> None:
        """Emit `unify` for labels that were made before their tokens were known."""
        tokens = stay.tokens
        learnt = [(one.label, one.same) for one in stay.grown(tokens)]
        for position in [one for one in stay.states if one <= len(tokens)]:
            learnt.append((stay.states.pop(position), self._state(stay, position)))
        for label, same in learnt:
            for leaf in self._leaves:
                self.hooks.emit(Unify(f"{leaf}:{stay.salt}{label}", f"{leaf}:{stay.salt}{same}"))

    def _state(self, stay: Stay, position: int) -> str:
        """The label of a state after so many tokens."""
        if not position:
            return "nothing"
        tokens, (page, further) = stay.tokens, divmod(position, self._size)
        if position > len(tokens):
            return stay.states.setdefault(position, f"{stay.name}@{position}")
        (label,) = stay.labels(tokens, page - 1, page) if page else ("",)
        return chained(label, ("state", *tokens[page * self._size : position])) if further else label

    # Launches

    def _table(self, _: None, __: None, leaf: Any, plans: Any, into: dict[str, Any]) -> None:
        """A leaf's table was staged: blocks of positions, or rows of states by layer."""
        region = getattr(leaf, "region", None)
        if region is None:
            self._tables[leaf.leaf_id] = into[leaf.leaf_id].tolist()
        else:
            rows = into[region.leaf_id][0]
            self._tables[leaf.leaf_id] = [[row // region.num_layers] for row in rows.tolist()]

    def _assigned(self, _: None, __: Any, cache: Any, staging: Any, *, replica_idx: int, **___: Any) -> None:
        self._staged[replica_idx], self._tables = self._tables, {}

    def _prepared(self, batches: Sequence[Any]) -> None:
        """The inputs of a pass were staged. Without drafts it is queued with them."""
        self._batches = batches
        if not self.drafting:
            parts = [context for batch in batches for context in batch]
            self.queued(
                {str(one.request_id): Part(one.tokens.processed_length, one.tokens.active_length) for one in parts}
            )

    def queued(self, parts: Mapping[str, Part]) -> None:
        """The staged pass is queued, with a part of each request."""
        self.launch = Launch()
        for replica, batch in enumerate(self._batches):
            if not batch:
                continue
            reads, writes, read_states, written_states = (list[Use]() for _ in range(4))
            for row, context in enumerate(batch):
                part = parts[str(context.request_id)]
                self._learns(self._stay(context))
                for leaf, region in self._leaves.items():
                    blocks = self._staged[replica][leaf][row]
                    if region.group_id.is_recurrent():
                        self._moves(replica, leaf, blocks[0], context, part, read_states, written_states)
                    elif not region.group_id.is_scratch():
                        window = region.group_id.window_size
                        self._attends(replica, leaf, blocks, context, part, window, reads, writes)
            if read_states:
                self._begin(replica, reads=read_states, writes=written_states, reads_own_writes=False)
            operation = self._begin(replica, reads=reads, writes=writes)
            self.launch.last.append(operation)
            for context in batch:
                stay, part = self._stay(context), parts[str(context.request_id)]
                stay.reached = stay.place + part.tokens + part.accepted
                if not context.tokens.actively_chunked:
                    self.launch.results[str(context.request_id)] = operation, stay.name

    def _attends(
        self,
        replica: int,
        leaf: str,
        blocks: list[int],
        context: Any,
        part: Part,
        window: int,
        reads: list[Use],
        writes: list[Use],
    ) -> None:
        """A pass writes the positions that it computes, and reads them and those before them, within the window.

        The drafter also reads its proposals. No other read expects their content, that of rejected drafts, or that of
        tokens at wrong positions.
        """
        stay, start, stop, end = self._stay(context), part.start, part.stop, part.ends(leaf)
        low = max(0, start - window + 1) if window > 0 else 0
        reads += self._span(replica, leaf, blocks, context, low, stop, stay.salt)
        right = stop if start == stay.place else start
        if right > start:
            writes += self._span(replica, leaf, blocks, context, start, right, self._written(context))
        if end > right:
            drafted = f"{stay.name} draft {next(self._numbers)} "
            writes += self._span(replica, leaf, blocks, context, right, end, drafted)
            if right == stop and leaf == DRAFTER and part.proposed:
                reads += self._span(replica, leaf, blocks, context, stop, stop + part.proposed, drafted)

    def _written(self, context: Any) -> str:
        """The salt and weights of the content that a pass writes."""
        stay = self._stay(context)
        return salted(context, self.routed.get(str(context.request_id), stay.weights))

    def _span(
        self, replica: int, leaf: str, blocks: list[int], context: Any, start: int, stop: int, salt: str
    ) -> list[Use]:
        stay, size, per = self._stay(context), self._size, self.per(leaf)
        first, last = start // size, -(-stop // size)
        blocks = [*blocks, *[0] * (last - len(blocks))]  # beyond its row a pass finds the null block
        labels = [f"{leaf}:{salt}{label}" for label in stay.labels([], first, last)]
        return [
            Use(
                pool=f"kv{replica}",
                pages=[block * per + piece for block in blocks[first:last]],
                start=start - first * size,
                stop=stop - first * size,
                labels=labels,
                holder=stay.name,
            )
            for piece in range(per)
        ]

    def _moves(
        self, replica: int, leaf: str, block: int, context: Any, part: Part, reads: list[Use], writes: list[Use]
    ) -> None:
        """A pass advances a state in its block, by its tokens and the accepted drafts."""
        stay = self._stay(context)
        start = stay.place
        stop = start + part.tokens + part.accepted
        for uses, position, salt in ((reads, start, stay.salt), (writes, stop, self._written(context))):
            label = self._state(stay, position)
            labels = [f"{leaf}:{salt if position else ''}{label}"] * self.per(leaf)
            pages = self.pages(leaf, [block])
            uses.append(Use(pool=f"kv{replica}", pages=[*pages], labels=labels, holder=stay.name))

    def _states_copied(self, cache: Any, replica: int, rows: dict[str, tuple[range, range]]) -> None:
        for key, (source, target) in rows.items():
            self._begin(replica, copies=[(self._rows(replica, key, source), self._rows(replica, key, target))])

    def _states_wiped(self, cache: Any, replica: int, rows: dict[str, range]) -> None:
        for key, span in rows.items():
            use = self._rows(replica, key, span)
            use.labels = [f"{key.removesuffix('/pool')}:nothing"] * len(use.pages)
            self._begin(replica, writes=[use])

    def _rows(self, replica: int, key: str, rows: range) -> Use:
        """The block of these rows of a pool of states."""
        leaf = key.removesuffix("/pool")
        return Use(pool=f"kv{replica}", pages=[*self.pages(leaf, [rows.start // len(rows)])])

    def finished(self, launch: Launch) -> None:
        """The host has waited for a pass."""
        for operation in launch.last:
            self.hooks.emit(End(operation))
        self._results.update(launch.results)

    def delivered(self, request: str) -> None:
        """A client gets the newest token of a request."""
        self.hooks.emit(Deliver(*self._results[request]))
