"""SGLang's own memory classes behind the protocol.

The adapter plays the scheduler: it calls the classes in the order in which SGLang's scheduler calls them, and sets on
a request what the scheduler sets. Where it has to choose how an operation of the specification is carried out:

- `extend` and `decode` allocate through SGLang's own functions, which are told that there is nothing to evict:
  eviction is an operation of its own.
- A decode step of n > 1 allocates as the speculative workers do; `verify` commits as they do, the whole accepted run,
  and a request that stopped within it notes how many tokens it keeps.
- `retract` is the release that SGLang uses for retraction. `abort` of a running request sets the reason that SGLang
  sets and releases without publishing; of a waiting request it does what SGLang does, which is to drop it.
- Sessions are opened, given turns and closed by SGLang's own session controller.
- Launches are only noted: no forward pass runs.
"""

from collections import Counter
from collections.abc import Iterable
from itertools import count
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

from kvconform.adapters.sglang.book import Book, Chat, Entry, Run
from kvconform.adapters.sglang.engine import Engine
from kvspec.events import (
    Config,
    DecodeAnswer,
    Done,
    EvictAnswer,
    ExtendAnswer,
    Figures,
    HolderView,
    MatchAnswer,
    PublishAnswer,
    Refusal,
    ReleaseAnswer,
    SnapshotAnswer,
)
from kvspec.pages import Runs, ceil_align, ceil_pages, compress
from kvspec.rules import Violation
from kvspec.tokens import Element, Tokens

KEYED = 1 << 40
"""Where the token ids begin that stand for the tokens of a page key."""

OVERSHOT = 1 << 50
"""Where the token ids begin that stand for accepted tokens which a request does not keep."""

CLOCK_STEP = 10.0
"""Seconds between two looks of the session controller, more than it waits on its own."""


class Adapter:
    """The memory of one SGLang engine; `adapter` in this package makes one for a release."""

    engine: ClassVar[Engine]
    lacks: ClassVar[frozenset[str]]

    def __init__(self, config: Config) -> None:
        """Make SGLang's objects of these sizes."""
        engine = self.engine
        self.config = config
        self.book = Book(config)
        self.pool = engine.pool(config)
        self.allocator = engine.allocator(config)
        self.prefix_cache = engine.prefix_cache(config, self.pool, self.allocator)
        self.tree_cache = self.prefix_cache if engine.session_cache is None else engine.session_cache(self.prefix_cache)
        self.sessions = engine.session_controller and engine.session_controller(self.tree_cache)
        self.first_row: int = min(self.pool.free_slots)
        """Newer releases keep row 0 for padding."""
        self._speculates = False
        self._page_keys: dict[str, int] = {}
        self._overshot = count(OVERSHOT)
        self._clock = 0.0

    # Requests that wait

    def open_session(self, session: str) -> Done:
        """Open a streaming session."""
        if self.sessions is None:
            raise Refusal(None, "this release has no streaming sessions")
        if session in self.book.chats:
            raise Refusal("OP-1", f"session {session} is open already")
        asked = SimpleNamespace(session_id=session, capacity_of_str_len=1 << 20, streaming=True, timeout=None)
        self.sessions.open(asked)
        self.book.chats[session] = Chat(Tokens(self.config.page_size))
        return Done()

    def submit(self, req: str, tokens: list[Element], session: str | None) -> Done:
        """Make SGLang's request; a session's controller decides whether it takes another turn."""
        sequence = self.book.check_submit(req, tokens, session)
        ids = self._ids(sequence)
        if session is None:
            made = self.engine.request(req, ids)
        else:
            made = self._turn(session, req, ids)
            self.book.chats[session].turn = req
        self.book.entries[req] = Entry(req, sequence, session, made)
        return Done()

    def _turn(self, name: str, req: str, ids: list[int]) -> Any:
        """The next turn of a session, given the tokens that it adds, as a client sends it."""
        chat, session = self.book.chats[name], self.sessions.get(name)
        guarded = hasattr(session, "_inflight")
        if chat.turn is not None and not guarded:
            raise Refusal("SESS-1", f"session {name} has a turn in flight: {chat.turn}")
        known = len(chat.history)
        made = self.engine.turn(session, req, ids[known:])
        if made is None:
            raise Refusal("SESS-1", f"the controller says that session {name} has a turn in flight")
        if chat.turn is None and list(made.origin_input_ids) != ids:
            raise Violation(
                "SESS-5",
                f"session {name} puts other tokens before the turn's own than its finished turns have left",
                expected=f"{known} tokens",
                observed=f"{len(made.origin_input_ids) - len(ids) + known} tokens",
            )
        return made

    def match_prefix(self, req: str) -> MatchAnswer:
        """Match as a scheduling round does for each waiting request that it looks at."""
        entry = self.book.entry(req)
        if entry.run is not None:
            raise Refusal("OP-1", f"request {req} is running")
        before = self._free_pages()
        entry.req.init_next_round_input(self.tree_cache)
        entry.prefix_len = len(entry.req.prefix_indices)
        entry.resumed = entry.session is not None and entry.req.req_pool_idx is not None
        return MatchAnswer(entry.prefix_len, int(entry.req.cache_protected_len), self._freed(before))

    # Requests that run

    def extend(self, reqs: list[tuple[str, int]]) -> ExtendAnswer:
        """Admit a prefill batch and allocate for it."""
        batch = [(*self.book.check_prefill(req, seq_len), seq_len) for req, seq_len in reqs]
        self.book.check_chunking(reqs)
        for entry, start, _ in batch:
            if entry.resumed and entry.run is None:
                self.book.check_row_is_quiet(int(entry.req.req_pool_idx), start)
            elif entry.run is None:
                self._match_still_stands(entry, start)
        self._check_prefill_room(batch)
        for entry, start, seq_len in batch:
            self._admit(entry, start, seq_len)
        self._allocate_prefill(batch)
        pages = {}
        for entry, start, seq_len in batch:
            self._begin_or_continue(entry, seq_len)
            new = self._pages_of(entry.req, start, seq_len)
            if new:
                pages[entry.name] = compress(new)
        return ExtendAnswer({entry.name: self._row(entry.req) for entry, _, _ in batch}, dict(pages))

    def _match_still_stands(self, entry: Entry, prefix_len: int) -> None:
        """What a request matched, once more: it owns nothing of it before it is admitted."""
        if not prefix_len:
            return
        found = self.engine.matched(self.prefix_cache, self.engine.full_ids(entry.req)[:prefix_len])
        if len(found.device_indices) < prefix_len:
            raise Refusal("STORE-5", f"what {entry.name} matched has been evicted: match again")
        entry.req.prefix_indices, entry.req.last_node = found.device_indices, found.last_device_node

    def _check_prefill_room(self, batch: list[tuple[Entry, int, int]]) -> None:
        page_size = self.config.page_size
        pages = sum(ceil_pages(seq_len, page_size) - ceil_pages(start, page_size) for _, start, seq_len in batch)
        continuing = [entry.run for entry, _, _ in batch if entry.run is not None]
        resumed = sum(entry.resumed and entry.run is None for entry, _, _ in batch)
        rows, free_rows = len(batch) - resumed - len(continuing), len(self.pool.free_slots)
        if not self.engine.rows_are_kept:
            rows += len(continuing)
            free_rows += sum(not run.stashed for run in continuing)
        self.book.check_room(pages, self.allocator.available_size() // page_size, rows, free_rows)

    def _admit(self, entry: Entry, start: int, seq_len: int) -> None:
        """What the scheduler does with a request that it takes into a prefill batch, before it allocates."""
        req, run = entry.req, entry.run
        if run is not None:
            if not run.stashed:
                self._stash_without_cache(run, req)
            req.init_next_round_input()
        else:
            self.tree_cache.inc_lock_ref(req.last_node)
        self.engine.set_extend(req, start, seq_len)
        if seq_len < len(entry.tokens):
            self.engine.count_chunk(req, 1)

    def _stash_without_cache(self, run: Run, req: Any) -> None:
        """Go on from a chunk that was not handed to the prefix cache: only its positions are noted."""
        rows = self.pool.req_to_token
        req.prefix_indices = rows[req.req_pool_idx, : run.seq_len].to(dtype=self.engine.torch.int64, copy=True)
        self._let_go_of_row_between_chunks(req)

    def _let_go_of_row_between_chunks(self, req: Any) -> None:
        """The scheduler of releases before 17850 frees a chunked request's row after each chunk."""
        if not self.engine.rows_are_kept:
            self.pool.free(req.req_pool_idx)

    def _allocate_prefill(self, batch: list[tuple[Entry, int, int]]) -> None:
        seq_lens = self.engine.int64([seq_len for _, _, seq_len in batch])
        fields = self.engine.batch(
            [entry.req for entry, _, _ in batch],
            self.tree_cache,
            prefix_lens=[start for _, start, _ in batch],
            extend_lens=[seq_len - start for _, start, seq_len in batch],
            seq_lens=seq_lens,
            seq_lens_cpu=seq_lens,
            extend_num_tokens=sum(seq_len - start for _, start, seq_len in batch),
        )
        self._set_server_args()
        _, _, rows = self.engine.common.alloc_for_extend(fields)
        for (entry, _, seq_len), row in zip(batch, rows, strict=True):
            entry.req.req_pool_idx = int(row)
            entry.req.kv_committed_len = entry.req.kv_allocated_len = seq_len
            entry.req.is_retracted = False

    def _begin_or_continue(self, entry: Entry, seq_len: int) -> None:
        run = entry.run
        if run is None:
            run = entry.run = Run(int(entry.req.req_pool_idx))
            entry.prefix_len = None
            entry.ran = True
        run.row = int(entry.req.req_pool_idx)
        run.seq_len = run.committed = run.prepared_end = seq_len
        run.promised = len(entry.tokens)
        run.drafts = 0
        run.mid_prefill = seq_len < len(entry.tokens)
        run.stashed = not run.mid_prefill

    def decode(self, reqs: list[str], n: int) -> DecodeAnswer:
        """Allocate one decode step, plain or speculative."""
        if n < 1:
            raise Refusal("OP-1", f"n is {n}")
        self.book.check_batch(reqs)
        page_size = self.config.page_size
        batch: list[tuple[Entry, Run, int, int]] = []
        for name in reqs:
            entry = self.book.running(name)[0]
            have = int(entry.req.kv_allocated_len)
            run = self.book.check_decode(name, n, have)
            batch.append((entry, run, have, max(have, run.committed + n)))
        needed = sum(ceil_pages(end, page_size) - ceil_pages(have, page_size) for _, _, have, end in batch)
        self.book.check_room(needed, self.allocator.available_size() // page_size, 0, 0)

        self._speculates = self._speculates or n > 1
        if not self._speculates:
            self._allocate_decode([entry.req for entry, _, _, _ in batch])
        else:
            self._allocate_ahead([(entry.req, have, end) for entry, _, have, end in batch if end > have])
        pages: dict[str, Runs] = {}
        for entry, run, have, end in batch:
            entry.req.kv_allocated_len = end
            if n == 1:
                run.committed += 1
                entry.req.kv_committed_len += 1
            run.prepared_end = run.committed + (0 if n == 1 else n)
            run.drafts = 0 if n == 1 else n
            new = self._pages_of(entry.req, have, end)
            if new:
                pages[entry.name] = compress(new)
        return DecodeAnswer(pages)

    def _allocate_decode(self, reqs: list[Any]) -> None:
        """One slot for each request, at its committed length."""
        seq_lens = self.engine.int64([req.kv_committed_len for req in reqs])
        rows = self.engine.int64([req.req_pool_idx for req in reqs])
        fields = self.engine.batch(
            reqs, self.tree_cache, seq_lens=seq_lens, seq_lens_cpu=seq_lens, req_pool_indices=rows
        )
        self._set_server_args()
        self.engine.common.alloc_for_decode(fields, token_per_req=1)

    def _allocate_ahead(self, growing: list[tuple[Any, int, int]]) -> None:
        """Slots for `[have, end)` of each request, as the speculative workers allocate for drafts."""
        if not growing:
            return
        self._set_server_args()
        common, int64 = self.engine.common, self.engine.int64
        view = self.engine.batch([], self.tree_cache).tree_cache
        total = sum(end - have for _, have, end in growing)
        rows = self.pool.req_to_token
        if self.config.page_size == 1:
            slots = common.alloc_token_slots(view, total)
        else:
            starts, ends = int64([have for _, have, _ in growing]), int64([end for _, _, end in growing])
            row_numbers = int64([req.req_pool_idx for req, _, _ in growing])
            last = common.get_last_loc(rows, row_numbers, starts)
            slots = common.alloc_paged_token_slots_extend(view, starts, starts, ends, ends, last, total)
        taken = 0
        for req, have, end in growing:
            self.pool.write((req.req_pool_idx, slice(have, end)), slots[taken : taken + end - have])
            taken += end - have

    def launch(self, launch: int, reqs: list[str]) -> Done:
        """Note a forward pass."""
        self.book.launch(launch, reqs)
        return Done()

    def complete(self, launch: int, tokens: dict[str, int]) -> Done:
        """Hand the sampled tokens to the requests, and count chunks that are done."""
        flight = self.book.complete(launch, tokens)
        for name in flight.sampled:
            entry = self.book.entries[name]
            entry.tokens.append(tokens[name])
            entry.req.output_ids.append(tokens[name])
        for name in flight.chunks:
            self.engine.count_chunk(self.book.entries[name].req, -1)
        return Done()

    def verify(self, req: str, accepted: int, tokens: list[int]) -> Done:
        """Commit the accepted run. All of it goes to the request's output; it notes how much it keeps."""
        entry, run = self.book.check_verify(req, accepted, len(tokens))
        run.drafts, run.verifiable = 0, False
        run.committed += accepted
        run.promised += len(tokens) - 1
        for token in tokens:
            entry.tokens.append(token)
        entry.req.output_ids.extend([*tokens, *(next(self._overshot) for _ in range(accepted - len(tokens)))])
        entry.req.kv_committed_len += accepted
        return Done()

    def cache_unfinished(self, req: str, chunked: bool) -> PublishAnswer:
        """Hand what a prefill wrote to the cache."""
        entry, run = self.book.check_unfinished(req, chunked)
        before = self._free_pages()
        if chunked:
            self.tree_cache.cache_unfinished_req(entry.req, chunked=True)
            if not run.stashed:
                self._let_go_of_row_between_chunks(entry.req)
            run.stashed = True
        else:
            self.tree_cache.cache_unfinished_req(entry.req)
        return PublishAnswer(int(entry.req.cache_protected_len), self._freed(before))

    # Ways out

    def finish(self, req: str) -> ReleaseAnswer:
        """The request stopped: it has as many tokens as it may have."""
        entry, _ = self.book.check_finish(req)
        kept = len(entry.tokens) - len(entry.req.origin_input_ids)
        entry.req.sampling_params.max_new_tokens = entry.req.finished_len = kept
        entry.req.finished_reason = self.engine.batches.FINISH_LENGTH(kept)
        freed = self._release(entry, is_insert=True)
        self.book.leave(entry, finished=True)
        return self._after_turn(entry, freed)

    def retract(self, req: str) -> ReleaseAnswer:
        """Release without publishing, and wait again."""
        entry, _ = self.book.running(req)
        freed = self._release(entry, is_insert=False)
        entry.req.reset_for_retract()
        entry.resumed = False
        return ReleaseAnswer(self._freed(freed))

    def abort(self, req: str) -> ReleaseAnswer:
        """A waiting request is dropped; a running one is released with the reason that says so."""
        entry = self.book.entry(req)
        before = self._free_pages()
        if entry.run is not None:
            entry.req.finished_reason = self.engine.batches.FINISH_ABORT()
            self._release(entry, is_insert=False)
        self.book.leave(entry, finished=False)
        return self._after_turn(entry, before)

    def _release(self, entry: Entry, *, is_insert: bool) -> Counter[int]:
        """Let SGLang release a request; the free pages as they were before."""
        before = self._free_pages()
        self._set_server_args()
        self.engine.release_kv_cache(entry.req, self.tree_cache, is_insert=is_insert)
        self.book.end_run(entry)
        return before

    def _after_turn(self, entry: Entry, before: Counter[int]) -> ReleaseAnswer:
        """A close that waited for this turn happens when the controller looks the next time."""
        chat = self.book.chats.get(entry.session) if entry.session is not None else None
        if chat is not None and chat.closing and entry.session is not None:
            self._reap()
            del self.book.chats[entry.session]
        return ReleaseAnswer(self._freed(before))

    def close_session(self, session: str) -> ReleaseAnswer:
        """Close as the session controller does."""
        chat = self.book.chat(session)
        if chat.closing:
            raise Refusal("OP-1", f"session {session} is closing already")
        before = self._free_pages()
        self.sessions.close(SimpleNamespace(session_id=session))
        if chat.turn is None:
            del self.book.chats[session]
        else:
            chat.closing = True
        return ReleaseAnswer(self._freed(before))

    def preempt(self, session: str) -> ReleaseAnswer:
        """Release what a session's slot holds."""
        self.book.chat(session)
        if session not in self._idle_slots():
            raise Refusal("OP-1", f"the slot of session {session} holds nothing, or is lent")
        before = self._free_pages()
        self.tree_cache.release_session(session)
        return ReleaseAnswer(self._freed(before))

    def evict(self, n: int) -> EvictAnswer:
        """Evict from the prefix store."""
        if n < 1:
            raise Refusal("OP-1", f"n is {n}")
        before = self._free_pages()
        self.engine.evict(self.tree_cache, n * self.config.page_size)
        return EvictAnswer(self._freed(before))

    def _reap(self) -> None:
        if hasattr(self.sessions, "maybe_reap"):
            self._clock += CLOCK_STEP
            self.sessions.maybe_reap(self._clock)

    # Looking

    def report(self, mode: Literal["idle", "busy"]) -> Figures:
        """The figures that SGLang's own memory check adds up."""
        holders = self._holders()
        if mode == "idle" and holders:
            raise Refusal("OP-1", f"{len(holders)} requests hold memory: this is not idle")
        page_size = self.config.page_size
        owned = {req.req_pool_idx for req in holders.values()}
        known = (owned,) if self.engine.excludes_lent_slots else ()
        has_sessions = self.sessions is not None
        return Figures(
            available=int(self.allocator.available_size()),
            evictable=int(self.tree_cache.evictable_size() or 0),
            protected=int(self.tree_cache.protected_size() or 0),
            session_held=int(self.tree_cache.session_held_tokens(*known)) if has_sessions else 0,
            uncached=sum(
                ceil_align(int(req.kv_allocated_len), page_size) - int(req.cache_protected_len)
                for req in holders.values()
            ),
            rows_available=len(self.pool.free_slots),
            rows_requests=len(holders),
            rows_sessions=int(self.tree_cache.session_held_req_count(*known)) if has_sessions else 0,
        )

    def snapshot(self) -> SnapshotAnswer:
        """Everything that SGLang's objects say of themselves."""
        holders, slots = self._holders(), self._idle_slots()
        rows = {self._row(holder): self._slots_of(holder) for holder in (*holders.values(), *slots.values())}
        free = [*self.allocator.free_pages.tolist(), *self.allocator.release_pages.tolist()]
        return SnapshotAnswer(
            rows=rows,
            free_pages=compress(sorted(free)),
            store_pages=compress(sorted(self._store_pages())),
            requests={name: self._view(req) for name, req in holders.items()},
            sessions={name: self._view(slot) for name, slot in slots.items()},
        )

    def _holders(self) -> dict[str, Any]:
        """The requests that say that they have a row."""
        return {name: entry.req for name, entry in self.book.entries.items() if entry.req.req_pool_idx is not None}

    def _idle_slots(self) -> dict[str, Any]:
        """The session slots that hold memory and have not lent it."""
        if self.sessions is None:
            return {}
        owned = {req.req_pool_idx for req in self._holders().values()}
        return {
            name: slot
            for name, slot in self.tree_cache.slots.items()
            if slot.is_holding_kv and slot.req_pool_idx not in owned
        }

    def _view(self, holder: Any) -> HolderView:
        lengths = holder.cache_protected_len, holder.kv_committed_len, holder.kv_allocated_len
        return HolderView(self._row(holder), *map(int, lengths))

    def _row(self, holder: Any) -> int:
        return int(holder.req_pool_idx) - self.first_row

    def _slots_of(self, holder: Any) -> Runs:
        return compress(self.pool.req_to_token[holder.req_pool_idx, : holder.kv_allocated_len].tolist())

    def _store_pages(self) -> Iterable[int]:
        root = getattr(self.prefix_cache, "root_node", None)
        waiting = [] if root is None else list(root.children.values())
        while waiting:
            node = waiting.pop()
            yield from (slot // self.config.page_size for slot in node.value.tolist()[:: self.config.page_size])
            waiting.extend(node.children.values())

    # Shared by several operations

    def _set_server_args(self) -> None:
        """What SGLang reads of the server's settings; they belong to the process, not to one engine."""
        self.engine.server_args.page_size = self.config.page_size
        self.engine.server_args.speculative_algorithm = "EAGLE" if self._speculates else None

    def _ids(self, tokens: Tokens) -> list[int]:
        """Token ids for a sequence; those of a page key are made up, the same for the same key."""
        page_size = self.config.page_size
        ids: list[int] = []
        for page in tokens.pages:
            if isinstance(page, str):
                number = self._page_keys.setdefault(page, len(self._page_keys))
                ids.extend(range(KEYED + number * page_size, KEYED + (number + 1) * page_size))
            else:
                ids.extend(page)
        return [*ids, *tokens.rest]

    def _pages_of(self, req: Any, start: int, end: int) -> list[int]:
        """The pages of the positions from the first whole page after `start` up to `end`."""
        page_size = self.config.page_size
        first = ceil_align(start, page_size)
        slots = self.pool.req_to_token[req.req_pool_idx, first:end:page_size].tolist()
        return [slot // page_size for slot in slots]

    def _free_pages(self) -> Counter[int]:
        return Counter([*self.allocator.free_pages.tolist(), *self.allocator.release_pages.tolist()])

    def _freed(self, before: Counter[int]) -> Runs:
        """The pages that have become free since; a page that was freed twice is there twice."""
        return compress(sorted((self._free_pages() - before).elements()))
