"""Findings of the memory checker alone: an implementation's answers and snapshots, as memory events.

No policy is checked: no matches, publications, evictions or lengths. The events are the *effects*: pages handed out and
freed according to the answers, the block tables, the prefix store and the free list according to each snapshot, and
launches over those tables. The tokens give the content of each position, so content is checked slot by slot.
"""

from collections.abc import Collection, Iterable
from hashlib import blake2b
from typing import Any

from msgspec.structs import asdict

from kvcheck import Checker, Finding
from kvconform.oracle.holders import Held
from kvconform.protocol import perform
from kvconform.proxy import ImplementationFailed, make
from kvconform.vectors.runner import Factory
from kvspec.events import (
    Complete,
    Config,
    Decode,
    Extend,
    FreeState,
    Launch,
    MatchPrefix,
    Operation,
    Refusal,
    Report,
    Snapshot,
    SnapshotAnswer,
    Submit,
    TakeState,
    Verify,
)
from kvspec.memory.events import (
    Begin,
    Count,
    Drop,
    End,
    EndHolder,
    Idle,
    Map,
    MemoryEvent,
    Pool,
    Publish,
    Release,
    Share,
    Take,
    Transfer,
    Unify,
    Unmap,
    Use,
)
from kvspec.pages import Runs, ceil_pages, expand
from kvspec.window import attended_from


class Witness:
    """Watches one implementation through its answers and snapshots, and reports their effects to the memory checker."""

    def __init__(self, config: Config) -> None:
        """An empty memory manager of the given sizes."""
        self.config = config
        size = config.page_size
        made = {"pages": Pool(size, config.num_pages, label_size=1), "rows": Pool(1, config.num_rows, 0)}
        if config.sliding_window:
            made["window"] = Pool(size, config.num_window_pages, label_size=1, padding=[0])
        if config.num_states:
            made["states"] = Pool(1, config.num_states)
        self.checker = Checker(made)
        self.findings: list[Finding] = []
        self._tokens: dict[str, list[object]] = {}
        """Request or "/session" -> its tokens."""
        self._session_of: dict[str, str] = {}
        self._prepared: dict[str, tuple[int, int]] = {}
        """Request -> the positions that the next launch computes."""
        self._reached: dict[str, int] = {}
        """Request -> the beginning of its next chunk."""
        self._unverified: dict[str, list[int]] = {}
        """Request -> positions of each speculative step that is not verified, oldest first."""
        self._promised: dict[tuple[str, int], str] = {}
        """Request and position -> the label written there before its token was known."""
        self._views: dict[str, Held] = {}
        self._names: dict[str, str] = {}
        """Request or "/session" with a row -> its name in memory events."""
        self._tables: dict[str, list[int]] = {}
        self._sides: dict[int, int] = {}
        self._stored: set[int] = set()
        self._states: set[int] = set()
        self._pinned: dict[int, list[int]] = {}
        """Launch -> the rows that it reads."""
        self._made = 0

    def _report(self, event: MemoryEvent) -> None:
        """Pass one event to the memory checker, and keep its findings."""
        self.findings += self.checker.step(event)

    def _held(self, holder: str, pool: str) -> Collection[int | str]:
        """The pages to which a holder refers."""
        return self.checker.state.holdings.get(holder, {}).get(pool, ())

    def _release(self, holder: str, pool: str, pages: Runs | None) -> None:
        if pages:
            self._report(Release(holder, pool, [*pages]))

    def _label(self, req: str, position: int) -> str:
        """The label of a position of a request."""
        tokens = self._tokens.get(req, [])
        if position >= len(tokens):
            return self._promised.get((req, position), f"{req} {position}")
        return blake2b(repr(tokens[: position + 1]).encode(), digest_size=8).hexdigest()

    def saw(self, op: Operation[Any], shown: SnapshotAnswer) -> None:
        """Report the effects of an operation, according to its answer and the snapshot after it."""
        self._update_tokens(op)
        shown_views = {**(shown.requests or {}), **{f"/{name}": view for name, view in (shown.sessions or {}).items()}}
        views = {name: Held(**asdict(view)) for name, view in shown_views.items()}  # the reference shows all
        gone = self._change_hands(views)
        who = self._holder(op)
        obs: Any = op.obs
        for field, pool in (("pages", "pages"), ("window_pages", "window"), ("states", "states")):
            for req, pages in (getattr(obs, field, None) or {}).items():
                self._report(Take(self._names.get(req, req), pool, [*pages]))
        if isinstance(op, (TakeState, FreeState)) and obs is not None and obs.state is not None:
            holder, slot = f"waiting {op.req}", obs.state
            self._report(
                Take(holder, "states", [slot]) if isinstance(op, TakeState) else Release(holder, "states", [slot])
            )
        self._publish(op, who, shown)
        self._give_back(op, who)
        for name, view in views.items():
            self._lay_out(name, view, shown)
        for name in gone:
            self._leave(name)
        self._drop(shown)
        self._views, self._sides = views, shown.window_sides or {}
        if isinstance(op, Launch) and obs is not None:
            self._launch(op)
        if isinstance(op, Complete) and obs is not None:
            self._report(End(op.launch))
            self._release(f"launch {op.launch}", "rows", self._pinned.pop(op.launch, None))
        self._count(op, shown)

    def _holder(self, op: Operation[Any]) -> str:
        """The holder of the record of an operation."""
        req = getattr(op, "req", "")
        session = "/" + (getattr(op, "session", None) or self._session_of.get(req, ""))
        return req if req in self._names else session

    def _update_tokens(self, op: Operation[Any]) -> None:
        """Update the tokens, and the positions to compute."""
        if op.obs is None:
            return
        match op:
            case Submit():
                size = self.config.page_size
                self._tokens[op.req] = [
                    part
                    for token in op.tokens
                    for part in ([(token, i) for i in range(size)] if isinstance(token, str) else [token])
                ]
                self._promised = {key: label for key, label in self._promised.items() if key[0] != op.req}
                if op.session is not None:
                    self._session_of[op.req] = op.session
            case MatchPrefix():
                self._unverified.pop(op.req, None)
                self._reached[op.req] = op.obs.prefix_len or 0
            case Extend():
                for req, seq_len in op.reqs:
                    self._prepared[req], self._reached[req] = (self._reached.get(req, 0), seq_len), seq_len
            case Decode():
                for req in op.reqs:
                    start = self._views[req].committed_len if req in self._views else 0
                    ahead = self._unverified.setdefault(req, [])
                    self._prepared[req] = start + bool(ahead), start + sum(ahead) + op.n
                    ahead += [op.n] if op.n > 1 else []
            case Complete():
                for req, token in op.sampled.items():
                    self._know(req, [token])
            case Verify():
                stopped = len(op.tokens) < op.accepted
                self._unverified[op.req] = [] if stopped else self._unverified.get(op.req, [])[1:]
                self._know(op.req, list(op.tokens))

    def _know(self, req: str, tokens: list[int]) -> None:
        """Note further tokens of a request, and report the labels of their positions."""
        known = self._tokens.setdefault(req, [])
        for token in tokens:
            promise = self._promised.pop((req, len(known)), None)
            known.append(token)
            if promise is not None:
                self._report(Unify(promise, self._label(req, len(known) - 1)))

    def _change_hands(self, views: dict[str, Held]) -> list[str]:
        """Report rows that were handed out or passed on. Returns the holders that ended without passing theirs on."""
        gone = [name for name in self._names if name not in views]
        for name, view in views.items():
            before = self._views.get(name)
            if before is not None and before.row == view.row:
                continue
            heir = next((old for old in gone if self._views[old].row == view.row), None)
            self._made += 1
            if before is not None:
                self._report(Take(self._names[name], "rows", [view.row]))
                self._report(Release(self._names[name], "rows", [before.row]))
                continue
            self._names[name] = f"{name}.{self._made}"
            if heir is not None:
                gone.remove(heir)
                self._report(Unmap(self._names[heir]))
                self._report(Transfer(self._names.pop(heir), self._names[name]))
                del self._tables[heir]
                self._tables[name] = []
                continue
            self._tables[name] = []
            self._report(Take(self._names[name], "rows", [view.row]))
            self._report(Transfer(f"waiting {name}", self._names[name], "states"))
        return gone

    def _publish(self, op: Operation[Any], who: str, shown: SnapshotAnswer) -> None:
        """Report new pages and states of the store."""
        stored, table, size = set(expand(shown.store_pages or ())), self._tables.get(who, []), self.config.page_size
        holder, req = self._names.get(who, ""), getattr(op, "req", who)
        for page in sorted(stored - self._stored):
            index = table.index(page) if page in table else 0
            labels = [self._label(req, position) for position in range(index * size, (index + 1) * size)]
            self._report(Publish("pages", [page], [labels[-1]], labels if page in table else None))
        for page in sorted(stored):
            side = (shown.window_sides or {}).get(page)
            if side is not None and not self.checker.state.pools["window"].page(side).keys:
                self._report(Publish("window", [side], [f"side {page}"]))
                self._release(holder, "window", [side] if side in self._held(holder, "window") else [])
        states = set(expand(shown.store_states or ()))
        taken = getattr(op.obs, "state_taken", None)
        if taken is not None:
            self._report(Take(holder, "states", [taken]))
            self._report(Begin(f"copy {self._made}", "host", writes=[Use(None, "states", [taken])]))
        for slot in sorted(states - self._states):
            self._report(Publish("states", [slot], [f"state {slot}"]))
            self._release(holder, "states", [slot])
        for slot in sorted(self._states - states):
            self._report(Drop("states", [slot]))
        self._stored |= stored
        self._states = states

    def _give_back(self, op: Operation[Any], who: str) -> None:
        """Release the pages that the answer returns to the pools, for the operation's holder."""
        holder = self._names.get(who, "")
        for field, pool in (("freed", "pages"), ("window_freed", "window"), ("states_freed", "states")):
            pages = expand(getattr(op.obs, field, None) or ())
            if pool == "pages":  # the store frees a tombstone that the holder's page has replaced
                pages = [page for page in pages if page not in self._given_way(holder, pages)]
            waiting = f"waiting {getattr(op, 'req', '')}"
            early = pool == "states" and waiting in self.checker.state.holdings
            self._release(waiting if early else holder, pool, pages)

    def _given_way(self, holder: str, pages: list[int]) -> set[int]:
        held = self._held(holder, "pages")
        return {page for page in pages if page in self._stored and page not in held} if self._sides else set()

    def _lay_out(self, name: str, view: Held, shown: SnapshotAnswer) -> None:
        """Report the block table of a holder, as in its row: its shared pages, and the positions of all pages."""
        size, holder = self.config.page_size, self._names[name]
        table = [slot // size for slot in expand((shown.rows or {}).get(view.row, ()))[::size]]
        if table == self._tables[name]:
            return
        for page in table[: view.protected_len // size]:
            if page not in self._held(holder, "pages"):
                self._report(Share(holder, "pages", [page]))
        self._report(Map(holder, holder, "pages", 0, [*table]))
        self._report(Unmap(holder, len(table)))
        self._tables[name] = table

    def _leave(self, name: str) -> None:
        """A holder has ended: release its locks and its row. Its other memory was reported as freed, or is lost."""
        holder, view = self._names.pop(name), self._views[name]
        table = self._tables.pop(name)
        held = self._held(holder, "pages")
        protected = view.protected_len // self.config.page_size
        locked = table[:protected] + [page for page in table[protected:] if page in self._stored]
        self._release(holder, "pages", [page for page in locked if page in held])
        self._release(holder, "rows", [view.row])
        self._report(EndHolder(holder))

    def _drop(self, shown: SnapshotAnswer) -> None:
        """Report pages and window sides that have left the store."""
        stored, sides = set(expand(shown.store_pages or ())), shown.window_sides or {}
        if gone := sorted(self._stored - stored):
            self._report(Drop("pages", [*gone]))
        named = {sides[page] for page in stored if page in sides}
        window = self.checker.state.pools.get("window")
        for side, found in list(window.pages.items()) if window is not None else ():
            if found.keys and side not in named:
                self._report(Drop("window", [side]))
        self._stored = stored

    def _launch(self, op: Launch) -> None:
        """Report a forward pass over the prepared positions of the requests."""
        reads: list[Use] = []
        writes: list[Use] = []
        rows = [self._views[req].row for req in op.reqs if req in self._views]
        for req in op.reqs:
            start, end = self._prepared.pop(req, (0, 0))
            if req not in self._views or start >= end:
                continue
            known = len(self._tokens.get(req, []))
            for position in range(max(start, known), end):
                self._promised[req, position] = f"{req} {position} of launch {op.launch}.{self._made}"
            labels = [self._label(req, position) for position in range(end)]
            holder = self._names[req]
            reads.append(Use(holder, start=0, stop=end, labels=labels))
            writes.append(Use(holder, start=start, stop=end, labels=labels[start:]))
            if self.config.sliding_window:
                self._window(req, start, end, labels, reads, writes)
            if self.config.num_states:
                writes.append(Use(None, "states", [*(self._views[req].states or ())], holder=holder))
        self._made += 1
        self._pinned[op.launch] = rows
        self._report(Share(f"launch {op.launch}", "rows", [*rows], pin=True))
        self._report(Begin(op.launch, "forward", reads, writes))

    def _window(self, req: str, start: int, end: int, labels: list[str], reads: list[Use], writes: list[Use]) -> None:
        size, table = self.config.page_size, self._tables[req]
        nearest = attended_from(start, self.config.sliding_window)
        first = nearest // size
        sides = [self._sides.get(page, 0) for page in table[first : ceil_pages(end, size)]]
        base = first * size
        reads.append(Use(None, "window", [*sides], nearest - base, end - base, labels[nearest:end]))
        writes.append(Use(None, "window", [*sides], start - base, end - base, labels[start:end]))

    def _count(self, op: Operation[Any], shown: SnapshotAnswer) -> None:
        """Report the free lists, and requested figures."""
        self._report(Count("pages", [*(shown.free_pages or ())]))
        if shown.free_states is not None:
            self._report(Count("states", [*shown.free_states]))
        if not isinstance(op, Report) or op.obs is None:
            return
        figures, size = op.obs, self.config.page_size
        for pool, free, cached, unit in (
            ("pages", figures.available, figures.evictable, size),
            ("rows", figures.rows_available, None, 1),
            ("window", figures.window_available, None, size),
        ):
            if free is not None and pool in self.checker.state.pools:
                self._report(Count(pool, free // unit, None if cached is None else cached // unit))
        if op.mode == "idle":
            launches = [f"launch {launch}" for launch in self._pinned]
            self._report(Idle([*self._names.values(), *launches, *(f"waiting {req}" for req in self._tokens)]))


def findings(factory: Factory, config: Config, operations: Iterable[Operation[Any]]) -> list[Finding]:
    """The memory checker's first findings in the answers of a fresh implementation.

    If the implementation itself fails, or cannot show its state, watching ends without a finding of the memory checker.
    """
    witness = Witness(config)
    try:
        implementation = make(factory, config)
    except ImplementationFailed:
        return []
    for op in operations:
        try:
            try:
                op.obs = perform(implementation, op)
            except Refusal:
                op.obs = None
            shown = perform(implementation, Snapshot())
        except Exception:
            break
        witness.saw(op, shown)
        if witness.findings:
            break
    return witness.findings
