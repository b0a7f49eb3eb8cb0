"""Operations on requests that wait, and the opening of sessions."""

from types import SimpleNamespace
from typing import Any

from kvconform.scheduler_state import Chat, Entry
from kvlab.sglang.adapter.inspection import Memory
from kvspec.events import Done, MatchAnswer, Refusal, StateAnswer
from kvspec.rules import Violation
from kvspec.tokens import Element, Tokens

KEYED = 1 << 40
"""The first of the token ids that stand for the tokens of a page key."""


class Waiting(Memory):
    """Requests that wait."""

    def open_session(self, session: str) -> Done:
        """Open a streaming session."""
        if self.sessions is None:
            raise Refusal(None, "this release has no streaming sessions")
        if session in self.scheduling.chats:
            raise Refusal("OP-1", f"session {session} is open already")
        asked = SimpleNamespace(session_id=session, capacity_of_str_len=1 << 20, streaming=True, timeout=None)
        self.sessions.open(asked)
        self.scheduling.chats[session] = Chat(Tokens(self.config.page_size))
        return Done()

    def submit(self, req: str, tokens: list[Element], session: str | None) -> Done:
        """Make SGLang's request. A session's controller decides whether it takes another turn."""
        sequence = self.scheduling.check_submit(req, tokens, session)
        ids = self.scheduling.ids(sequence, KEYED)
        if session is None:
            made = self.engine.request(req, ids)
        else:
            made = self._turn(session, req, ids)
            self.scheduling.chats[session].turn = req
        self.scheduling.entries[req] = Entry(req, sequence, session, made)
        return Done()

    def _turn(self, name: str, req: str, ids: list[int]) -> Any:
        """The next turn of a session as a client sends it, with the tokens that it adds."""
        chat, session = self.scheduling.chats[name], self.sessions.get(name)
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
        """Match as a scheduling round does for each waiting request."""
        entry = self.scheduling.entry(req)
        if entry.run is not None:
            raise Refusal("OP-1", f"request {req} is running")
        before = self.pools.free()
        self._set_server_args()
        entry.req.init_next_round_input(_WithoutStates(self.tree_cache))
        entry.prefix_len = len(entry.req.prefix_indices)
        entry.resumed = entry.session is not None and entry.req.req_pool_idx is not None
        return MatchAnswer(entry.prefix_len, int(entry.req.cache_protected_len), *self._freed(before))

    def take_state(self, req: str) -> StateAnswer:
        """Match as a scheduling round does with cached states: a request gets the slot for its copy at once."""
        entry = self.scheduling.entry(req)
        if self.pools.states is None or entry.run is not None or entry.resumed:
            raise Refusal("OP-1", f"request {req} takes no state slot")
        if entry.prefix_len is None or entry.req.mamba_pool_idx is not None:
            raise Refusal("OP-1", f"request {req} has not matched, or has a state slot")
        self.scheduling.check_room(self.pools.need(0, states=1), self.pools.room())
        return StateAnswer(self._take_state(entry, entry.prefix_len))

    def _take_state(self, entry: Entry, prefix_len: int) -> int:
        if prefix_len:
            self.engine.match_with_state(self.prefix_cache, entry.req, self.engine.full_ids(entry.req)[:prefix_len])
        if entry.req.mamba_pool_idx is None:
            entry.req.mamba_pool_idx = self.pools.states.alloc(1)[0]
        return self.pools.state(entry.req.mamba_pool_idx)

    def free_state(self, req: str) -> StateAnswer:
        """Free the state slot of a request that was not admitted, as the scheduler does."""
        entry = self.scheduling.entry(req)
        early = entry.run is None and not entry.resumed
        if self.pools.states is None or not early or entry.req.mamba_pool_idx is None:
            raise Refusal("OP-1", f"request {req} has no state slot without a row")
        slot = self.pools.state(entry.req.mamba_pool_idx)
        self.pools.states.free(entry.req.mamba_pool_idx.unsqueeze(-1))
        entry.req.mamba_pool_idx = None
        return StateAnswer(slot)


class _WithoutStates:
    """A prefix cache in which a waiting request only looks up: it takes no state slot."""

    def __init__(self, tree_cache: Any) -> None:
        self._tree_cache = tree_cache

    def supports_mamba(self) -> bool:
        return False

    def __getattr__(self, name: str) -> Any:
        return getattr(self._tree_cache, name)
