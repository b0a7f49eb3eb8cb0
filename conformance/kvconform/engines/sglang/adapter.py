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
- A window is moved by the batch's own function, at moments at which the scheduler may do it; in others it stays.
- A state slot is taken by the match that copies a cached state, and otherwise from the pool. States are kept at page
  borders: SGLang's interval and chunk size are set so.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace
from typing import Any, ClassVar, Literal

from kvconform.engines.book import Book, Chat, Entry, Run
from kvconform.engines.sglang.engine import Engine
from kvconform.engines.sglang.pools import Free, Freed, Pools
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
    StateAnswer,
    SwaEvictAnswer,
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
        self._speculates = False
        self._set_server_args()
        self.pool = engine.pool(config)
        self.allocator = engine.allocator(config)
        self.pools = Pools(config, self.pool, self.allocator)
        self.prefix_cache = engine.prefix_cache(config, self.pool, self.allocator)
        self.tree_cache = self.prefix_cache if engine.session_cache is None else engine.session_cache(self.prefix_cache)
        self.sessions = engine.session_controller and engine.session_controller(self.tree_cache)
        self.first_row: int = min(self.pool.free_slots)
        """Newer releases keep row 0 for padding."""
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
        before = self.pools.free()
        self._set_server_args()
        entry.req.init_next_round_input(_WithoutStates(self.tree_cache))
        entry.prefix_len = len(entry.req.prefix_indices)
        entry.resumed = entry.session is not None and entry.req.req_pool_idx is not None
        return MatchAnswer(entry.prefix_len, int(entry.req.cache_protected_len), *self._freed(before))

    def take_state(self, req: str) -> StateAnswer:
        """Match as a scheduling round does where states are cached: a request gets the slot for its copy at once."""
        entry = self.book.entry(req)
        if self.pools.states is None or entry.run is not None or entry.resumed:
            raise Refusal("OP-1", f"request {req} takes no state slot")
        if entry.prefix_len is None or entry.req.mamba_pool_idx is not None:
            raise Refusal("OP-1", f"request {req} has not matched, or has a state slot")
        self.book.check_room(self.pools.need(0, states=1), self.pools.room())
        return StateAnswer(self._take_state(entry, entry.prefix_len))

    def _take_state(self, entry: Entry, prefix_len: int) -> int:
        if prefix_len:
            self.engine.match_with_state(self.prefix_cache, entry.req, self.engine.full_ids(entry.req)[:prefix_len])
        if entry.req.mamba_pool_idx is None:
            entry.req.mamba_pool_idx = self.pools.states.alloc(1)[0]
        return self.pools.state(entry.req.mamba_pool_idx)

    def free_state(self, req: str) -> StateAnswer:
        """What the scheduler does with the slot of a request that it did not admit."""
        entry = self.book.entry(req)
        early = entry.run is None and not entry.resumed
        if self.pools.states is None or not early or entry.req.mamba_pool_idx is None:
            raise Refusal("OP-1", f"request {req} has no state slot without a row")
        slot = self.pools.state(entry.req.mamba_pool_idx)
        self.pools.states.free(entry.req.mamba_pool_idx.unsqueeze(-1))
        entry.req.mamba_pool_idx = None
        return StateAnswer(slot)

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
        had = {entry.name: self._states_of(entry.req) for entry, _, _ in batch}
        for entry, start, seq_len in batch:
            self._admit(entry, start, seq_len)
        self._allocate_prefill(batch)
        pages = {}
        for entry, start, seq_len in batch:
            self._begin_or_continue(entry, seq_len)
            new = self._pages_of(entry.req, start, seq_len)
            if new:
                pages[entry.name] = new
        rows = {entry.name: self._row(entry.req) for entry, _, _ in batch}
        states: dict[str, Runs] = {
            entry.name: compress(sorted((self._states_of(entry.req) - had[entry.name]).elements()))
            for entry, _, _ in batch
        }
        return ExtendAnswer(rows, _runs(pages), self._sides_of(pages), None if self.pools.states is None else states)

    def _match_still_stands(self, entry: Entry, prefix_len: int) -> None:
        """What a request matched, once more: it owns nothing of it before it is admitted."""
        if not prefix_len:
            return
        found = self.engine.matched(self.prefix_cache, self.engine.full_ids(entry.req)[:prefix_len])
        if len(found.device_indices) < prefix_len:
            raise Refusal("STORE-5", f"what {entry.name} matched has been evicted: match again")
        entry.req.prefix_indices, entry.req.last_node = found.device_indices, found.last_device_node

    def _check_prefill_room(self, batch: list[tuple[Entry, int, int]]) -> None:
        page_size, room = self.config.page_size, self.pools.room()
        pages = sum(ceil_pages(seq_len, page_size) - ceil_pages(start, page_size) for _, start, seq_len in batch)
        continuing = [entry.run for entry, _, _ in batch if entry.run is not None]
        fresh = [entry for entry, _, _ in batch if entry.run is None and not entry.resumed]
        rows = len(fresh)
        if not self.engine.rows_are_kept:
            rows += len(continuing)
            room = room._replace(rows=room.rows + sum(not run.stashed for run in continuing))
        states = sum((entry.req.mamba_pool_idx is None) + self.config.tracking_states for entry in fresh)
        self.book.check_room(self.pools.need(pages, rows, states), room)

    def _admit(self, entry: Entry, start: int, seq_len: int) -> None:
        """What the scheduler does with a request that it takes into a prefill batch, before it allocates."""
        req, run = entry.req, entry.run
        if run is not None:
            if not run.stashed:
                self._stash_without_cache(run, req)
            req.init_next_round_input()
        else:
            if not entry.resumed:
                self._cut_at_window(req, start)
            self.engine.lock(self.tree_cache, req)
            if self.pools.states is not None and not entry.resumed:
                self._look_for_branch(req, start)
                if req.mamba_pool_idx is None:
                    self._take_state(entry, start)
        self.engine.set_extend(req, start, seq_len)
        if seq_len < len(entry.tokens):
            self.engine.count_chunk(req, 1)

    def _cut_at_window(self, req: Any, locked: int) -> None:
        """Cut the node in which the window before `locked` begins.

        SGLang locks the window of whole nodes. A node that ends where the window begins may come about in any tree,
        by another prompt; here it always does, so that a lock covers the pages that the specification says.
        """
        reach = ceil_align(self.config.sliding_window, self.config.page_size)
        if reach and self.config.prefix_cache and locked > reach:
            self.engine.matched(self.prefix_cache, self.engine.full_ids(req)[: locked - reach])

    def _look_for_branch(self, req: Any, matched: int) -> None:
        """Note where the cached pages end now, if that is past the last cached state: where states will be missed."""
        found = self.engine.matched(self.prefix_cache, self.engine.full_ids(req)[:-1])
        req.mamba_branching_seqlen = found.mamba_branching_seqlen if len(found.device_indices) == matched else None

    def _stash_without_cache(self, run: Run, req: Any) -> None:
        """Go on from a chunk that was not handed to the prefix cache: only its positions are noted."""
        rows = self.pool.req_to_token
        req.prefix_indices = rows[req.req_pool_idx, : run.seq_len].to(dtype=self.engine.torch.int64, copy=True)
        self._let_go_of_row_between_chunks(req)

    def _let_go_of_row_between_chunks(self, req: Any) -> None:
        """The scheduler of releases before 17850 frees a chunked request's row after each chunk."""
        if not self.engine.rows_are_kept:
            self.pool.free(req.req_pool_idx, **({} if self.pools.states is None else {"free_mamba_cache": False}))

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
        with _refused_without_room():
            _, _, rows = self.engine.common.alloc_for_extend(fields)
        for (entry, _, seq_len), row in zip(batch, rows, strict=True):
            entry.req.req_pool_idx = int(row)
            entry.req.kv_committed_len = entry.req.kv_allocated_len = seq_len
            entry.req.is_retracted = False
            if self.config.tracking_states:
                self.engine.track_extend(self.pool, entry.req)

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
        if n > 1 and self.pools.states is not None:
            raise Refusal("OP-1", "a recurrent state cannot be taken back")
        self.book.check_batch(reqs)
        page_size = self.config.page_size
        batch: list[tuple[Entry, Run, int, int]] = []
        for name in reqs:
            entry = self.book.running(name)[0]
            have = int(entry.req.kv_allocated_len)
            run = self.book.check_decode(name, n, have)
            batch.append((entry, run, have, max(have, run.committed + n)))
        needed = sum(ceil_pages(end, page_size) - ceil_pages(have, page_size) for _, _, have, end in batch)
        self.book.check_room(self.pools.need(needed), self.pools.room())

        self._speculates = self._speculates or n > 1
        if not self._speculates:
            self._allocate_decode([entry.req for entry, _, _, _ in batch])
        else:
            self._allocate_ahead([(entry.req, have, end) for entry, _, have, end in batch if end > have])
        pages: dict[str, list[int]] = {}
        for entry, run, have, end in batch:
            entry.req.kv_allocated_len = end
            if n == 1:
                run.committed += 1
                entry.req.kv_committed_len += 1
            run.prepared_end = run.committed + (0 if n == 1 else n)
            run.drafts = 0 if n == 1 else n
            new = self._pages_of(entry.req, have, end)
            if new:
                pages[entry.name] = new
        return DecodeAnswer(_runs(pages), self._sides_of(pages))

    def _allocate_decode(self, reqs: list[Any]) -> None:
        """One slot for each request, at its committed length."""
        seq_lens = self.engine.int64([req.kv_committed_len for req in reqs])
        rows = self.engine.int64([req.req_pool_idx for req in reqs])
        fields = self.engine.batch(
            reqs, self.tree_cache, seq_lens=seq_lens, seq_lens_cpu=seq_lens, req_pool_indices=rows
        )
        self._set_server_args()
        with _refused_without_room():
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
        with _refused_without_room():
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
            self._track_decode(entry)
        for name in flight.chunks:
            self.engine.count_chunk(self.book.entries[name].req, -1)
        return Done()

    def _track_decode(self, entry: Entry) -> None:
        """What is noted with each decoded token: at a page border, which tracking slot keeps the state there."""
        req, position = entry.req, len(entry.tokens) - 1
        assert entry.run is not None, "a token comes for what runs"
        if self.config.tracking_states and position > entry.run.seq_len and position % self.config.page_size == 0:
            req.mamba_next_track_idx = self.pool.get_mamba_ping_pong_other_idx(req.mamba_next_track_idx)
            req.mamba_last_track_seqlen = position

    def verify(self, req: str, accepted: int, tokens: list[int]) -> Done:
        """Commit the accepted run. All of it goes to the request's output; it notes how much it keeps."""
        entry, run = self.book.check_verify(req, accepted, len(tokens))
        run.drafts, run.verifiable = 0, False
        run.stopped = len(tokens) < accepted
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
        before, cached, protected = self.pools.free(), self._store_states(), int(entry.req.cache_protected_len)
        if chunked:
            self.tree_cache.cache_unfinished_req(entry.req, chunked=True)
            if not run.stashed:
                self._let_go_of_row_between_chunks(entry.req)
            run.stashed = True
        else:
            self.tree_cache.cache_unfinished_req(entry.req)
        if self.pools.window is not None and int(entry.req.cache_protected_len) > protected:
            self.engine.unlock(self.prefix_cache, entry.req)
            self._cut_at_window(entry.req, int(entry.req.cache_protected_len))
            self.engine.lock(self.prefix_cache, entry.req)
        freed = self._freed(before)
        answer = PublishAnswer(int(entry.req.cache_protected_len), freed.pages, freed.window)
        if before.states is not None:
            answer.state_cached = _only(self._store_states() - cached)
            answer.state_taken = _only(before.states.keys() - (self.pools.free().states or {}).keys())
        return answer

    def swa_evict(self, req: str) -> SwaEvictAnswer:
        """What a batch does for a request before it allocates.

        SGLang does it in decode steps, and without a prefix cache between chunks. Before that the window stays as it
        is, and when a request has stopped.
        """
        entry, run = self.book.running(req)
        if self.pools.window is None:
            raise Refusal("OP-1", "there is no sliding window")
        before = self.pools.free()
        position = None
        if run.mid_prefill:
            position = run.seq_len if not run.prepared_end and not self.config.prefix_cache else None
        elif len(entry.tokens) > run.seq_len and not run.stopped:
            position = len(entry.tokens) - 1
        if position is not None:
            self.engine.evict_window(self.prefix_cache, entry.req, position)
        return SwaEvictAnswer(_cursor(entry.req), self._freed(before).window)

    # Ways out

    def finish(self, req: str) -> ReleaseAnswer:
        """The request stopped: it has as many tokens as it may have."""
        entry, _ = self.book.check_finish(req)
        kept = len(entry.tokens) - len(entry.req.origin_input_ids)
        entry.req.sampling_params.max_new_tokens = entry.req.finished_len = kept
        entry.req.finished_reason = self.engine.batches.FINISH_LENGTH(kept)
        cached = self._store_states()
        before = self._release(entry, is_insert=True)
        self.book.leave(entry, finished=True)
        answer = self._after_turn(entry, before)
        answer.state_cached = _only(self._store_states() - cached)
        return answer

    def retract(self, req: str) -> ReleaseAnswer:
        """Release without publishing, and wait again."""
        entry, _ = self.book.running(req)
        before = self._release(entry, is_insert=False)
        entry.req.reset_for_retract()
        entry.resumed = False
        return ReleaseAnswer(*self._freed(before))

    def abort(self, req: str) -> ReleaseAnswer:
        """A waiting request is dropped; a running one is released with the reason that says so."""
        entry = self.book.entry(req)
        before = self.pools.free()
        if entry.run is not None:
            entry.req.finished_reason = self.engine.batches.FINISH_ABORT()
            self._release(entry, is_insert=False)
        elif self.pools.states is not None and entry.req.mamba_pool_idx is not None:
            if entry.req.req_pool_idx is None and not self.config.prefix_cache:
                self.free_state(req)  # without a prefix cache SGLang takes no state before a row
            else:
                self._release(entry, is_insert=False)
        self.book.leave(entry, finished=False)
        return self._after_turn(entry, before)

    def _release(self, entry: Entry, *, is_insert: bool) -> Free:
        """Let SGLang release a request; what was free before."""
        before = self.pools.free()
        self._set_server_args()
        self.engine.release_kv_cache(entry.req, self.tree_cache, is_insert=is_insert)
        self.book.end_run(entry)
        return before

    def _after_turn(self, entry: Entry, before: Free) -> ReleaseAnswer:
        """A close that waited for this turn happens when the controller looks the next time."""
        chat = self.book.chats.get(entry.session) if entry.session is not None else None
        if chat is not None and chat.closing and entry.session is not None:
            self._reap()
            del self.book.chats[entry.session]
        return ReleaseAnswer(*self._freed(before))

    def close_session(self, session: str) -> ReleaseAnswer:
        """Close as the session controller does."""
        chat = self.book.chat(session)
        if chat.closing:
            raise Refusal("OP-1", f"session {session} is closing already")
        before = self.pools.free()
        self.sessions.close(SimpleNamespace(session_id=session))
        if chat.turn is None:
            del self.book.chats[session]
        else:
            chat.closing = True
        return ReleaseAnswer(*self._freed(before))

    def preempt(self, session: str) -> ReleaseAnswer:
        """Release what a session's slot holds."""
        self.book.chat(session)
        if session not in self._idle_slots():
            raise Refusal("OP-1", f"the slot of session {session} holds nothing, or is lent")
        before = self.pools.free()
        self.tree_cache.release_session(session)
        return ReleaseAnswer(*self._freed(before))

    def evict(self, n: int, window: int = 0, states: int = 0) -> EvictAnswer:
        """Evict from the prefix store."""
        if min(n, window, states) < 0 or n + window + states < 1:
            raise Refusal("OP-1", f"n is {n}, window {window}, states {states}")
        if (window and self.pools.window is None) or (states and self.pools.states is None):
            raise Refusal("OP-1", "there is no such pool")
        before, page_size = self.pools.free(), self.config.page_size
        self.engine.evict(self.prefix_cache, n * page_size, window * page_size, states)
        return EvictAnswer(*self._freed(before))

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
        page_size, pools = self.config.page_size, self.pools
        owned = {req.req_pool_idx for req in holders.values()}
        known = (owned,) if self.engine.excludes_lent_slots else ()
        has_sessions = self.sessions is not None
        size = "full_{}_size" if pools.window is not None or pools.states is not None else "{}_size"
        told = Figures(
            available=int(pools.pages.available_size()),
            evictable=int(getattr(self.prefix_cache, size.format("evictable"))() or 0),
            protected=int(getattr(self.prefix_cache, size.format("protected"))() or 0),
            session_held=int(self.tree_cache.session_held_tokens(*known)) if has_sessions else 0,
            uncached=sum(
                ceil_align(int(req.kv_allocated_len), page_size) - int(req.cache_protected_len)
                for req in holders.values()
            ),
            rows_available=len(self.pool.free_slots),
            rows_requests=len(holders),
            rows_sessions=int(self.tree_cache.session_held_req_count(*known)) if has_sessions else 0,
        )
        if pools.window is not None:
            told.window_available = int(pools.window.available_size())
            told.window_evictable = int(self.prefix_cache.swa_evictable_size())
            told.window_protected = int(self.prefix_cache.swa_protected_size())
            told.window_session_held = int(self.tree_cache.session_held_swa_tokens(*known)) if has_sessions else 0
            told.window_uncached = sum(
                ceil_align(int(req.kv_allocated_len), page_size) - _cursor(req) for req in holders.values()
            )
        if pools.states is not None:
            told.states_available = int(pools.states.available_size())
            told.states_evictable = int(self.prefix_cache.mamba_evictable_size()) if self.config.prefix_cache else 0
            told.states_protected = int(self.prefix_cache.mamba_protected_size()) if self.config.prefix_cache else 0
            told.states_requests = sum(self._states_of(entry.req).total() for entry in self.book.entries.values())
            if has_sessions and hasattr(self.tree_cache, "session_held_mamba_slots"):
                told.states_sessions = int(self.tree_cache.session_held_mamba_slots(*known))
        return told

    def snapshot(self) -> SnapshotAnswer:
        """Everything that SGLang's objects say of themselves."""
        holders, slots = self._holders(), self._idle_slots()
        rows = {self._row(holder): self._slots_of(holder) for holder in (*holders.values(), *slots.values())}
        free = self.pools.free()
        told = SnapshotAnswer(
            rows=rows,
            free_pages=compress(sorted(free.pages.elements())),
            store_pages=compress(sorted(self._store_pages())),
            requests={name: self._view(req) for name, req in holders.items()},
            sessions={name: self._view(slot) for name, slot in slots.items()},
        )
        if free.window is not None:
            # What the mapping says of a page that is free is left from its last holder.
            in_use = set(range(1, self.config.num_pages + 1)) - free.pages.keys()
            told.window_sides = self.pools.sides(in_use)
        if free.states is not None:
            told.free_states = compress(sorted(free.states.elements()))
            told.store_states = compress(sorted(self._store_states()))
        return told

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
        return HolderView(
            self._row(holder),
            int(holder.cache_protected_len),
            int(holder.kv_committed_len),
            int(holder.kv_allocated_len),
            None if self.pools.window is None else _cursor(holder),
            None if self.pools.states is None else compress(sorted(self._states_of(holder).elements())),
        )

    def _states_of(self, holder: Any) -> Counter[int]:
        """The state slots that a request or a session slot names."""
        if self.pools.states is None:
            return Counter()
        working, kept = holder.mamba_pool_idx, holder.mamba_ping_pong_track_buffer
        slots = [*([] if working is None else [working]), *([] if kept is None else kept)]
        return Counter(self.pools.state(slot) for slot in slots)

    def _row(self, holder: Any) -> int:
        return int(holder.req_pool_idx) - self.first_row

    def _slots_of(self, holder: Any) -> Runs:
        return compress(self.pool.req_to_token[holder.req_pool_idx, : holder.kv_allocated_len].tolist())

    def _nodes(self) -> Iterable[Any]:
        """The nodes of the prefix store, without its root."""
        root = getattr(self.prefix_cache, "root_node", None)
        waiting = [] if root is None else list(root.children.values())
        while waiting:
            node = waiting.pop()
            yield node
            waiting.extend(node.children.values())

    def _store_pages(self) -> Iterable[int]:
        for node in self._nodes():
            yield from (slot // self.config.page_size for slot in node.value.tolist()[:: self.config.page_size])

    def _store_states(self) -> set[int]:
        if self.pools.states is None:
            return set()
        return {self.pools.state(node.mamba_value) for node in self._nodes() if node.mamba_value is not None}

    # Shared by several operations

    def _set_server_args(self) -> None:
        self.engine.set_page_size(self.config.page_size, speculates=self._speculates)

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

    def _sides_of(self, pages: dict[str, list[int]]) -> dict[str, Runs] | None:
        """The window pages behind new pages, as an answer tells them."""
        if self.pools.window is None:
            return None
        return {name: compress(self.pools.side(page) for page in new) for name, new in pages.items()}

    def _freed(self, before: Free) -> Freed:
        """What has become free since."""
        return self.pools.free().since(before)


class _WithoutStates:
    """A prefix cache that a waiting request only looks into: it takes no state slot by it."""

    def __init__(self, tree_cache: Any) -> None:
        self._tree_cache = tree_cache

    def supports_mamba(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tree_cache, name)


@contextmanager
def _refused_without_room() -> Iterator[None]:
    """SGLang's allocation says that there is no room by an exception. There is: it was looked for before."""
    try:
        yield
    except RuntimeError as error:
        raise Refusal("CAP-1", str(error).partition("\n")[0]) from error


def _runs(pages: dict[str, list[int]]) -> dict[str, Runs]:
    return {name: compress(new) for name, new in pages.items()}


def _cursor(holder: Any) -> int:
    """How far a request or a session slot has given its window back, in tokens."""
    return max(int(holder.swa_evicted_seqlen), int(holder.cache_protected_len))


def _only(numbers: Iterable[int]) -> int | None:
    """The one of `numbers`; `None` if there is none."""
    return next(iter(numbers), None)
