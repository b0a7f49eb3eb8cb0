"""Helpers for the tests of the reference: the reference beside the model, and traffic for both."""

import copy
from collections.abc import Callable
from random import Random
from typing import Any

import msgspec

from kvcheck import Checker
from kvconform.oracle import Model
from kvref import Manager
from kvref.request import Run
from kvspec import events, invariants
from kvspec.events import Answer, Config, Event, HolderView, Refusal
from kvspec.pages import expand
from kvspec.tokens import Element
from tests.spec.oddities import is_sentence

SESSIONS = ["s0", "s1"]


def carry_out(manager: Manager, op: Event) -> None:
    """Let the reference carry out an operation, and record its answer or refusal in it."""
    arguments = [getattr(op, field) for field in op.__struct_fields__ if field not in ("obs", "refused")]
    try:
        op.obs = getattr(manager, str(op.__struct_config__.tag))(*arguments)
    except Refusal as refusal:
        op.refused = refusal.refused


class Pair:
    """The reference and the model, side by side: the model checks each answer of the reference."""

    def __init__(self, config: Config) -> None:
        self.manager = Manager(config)
        self.model = Model(config, checker=Checker)
        self.done: list[Event] = []

    def step(self, op: Event) -> None:
        """Carry out an operation and check its answer; a refused one must have changed nothing."""
        before = self.manager.snapshot()
        self.done.append(op)
        carry_out(self.manager, op)
        self.model.step(op)
        if op.refused is not None:
            assert is_sentence(op.refused.reason)
            assert self.manager.snapshot() == before
        if isinstance(op, events.Evict) and op.obs is not None and not op.n:
            assert len(expand(op.obs.states_evicted or ())) <= op.states

    def refuses(self, op: Event) -> bool:
        """Whether the model refuses an operation; it is not carried out."""
        other = copy.copy(self.model)
        other.state = self.model.state.copy()
        try:
            other.step(msgspec.structs.replace(op))
        except Refusal:
            return True
        return False

    def compare(self) -> None:
        """Compare the whole state and the figures, and check every rule on the state that both agree on.

        Both must answer the same parts: the model does not check a part that the reference omits, but it differs.
        """
        for asked, answered in (
            (events.Snapshot(), events.Snapshot(obs=self.manager.snapshot())),
            (events.Report(), events.Report(obs=self.manager.report())),
        ):
            self.model.step(answered)
            self.model.step(asked)
            assert asked.obs == answered.obs or _expanded(asked.obs) == _expanded(answered.obs)
        invariants.check(self.model.state)


def _expanded(answer: Answer | HolderView | None) -> object:
    """All parts of an answer, with runs as numbers."""
    return {name: _numbers(part) for name, part in msgspec.structs.asdict(answer).items()} if answer else None


def _numbers(part: Any) -> object:
    match part:
        case list():
            return sorted(expand(part))
        case dict():
            return {name: _numbers(one) for name, one in part.items()}
        case HolderView():
            return _expanded(part)
    return part


class Traffic:
    """Draws operations: most fit the manager's state, a tenth are on any request at all."""

    def __init__(self, random: Random, manager: Manager) -> None:
        self.random = random
        self.manager = manager
        self.launches = 0
        self.submitted = 0

    def op(self) -> Event:
        kinds: dict[Callable[[], Event | None], int] = {
            self.open_session: 2,
            self.submit: 3,
            self.match_prefix: 3,
            self.extend: 5,
            self.decode: 6,
            self.launch: 8,
            self.complete: 6,
            self.verify: 4,
            self.cache_unfinished: 3,
            self.finish: 2,
            self.retract: 1,
            self.abort: 1,
            self.close_session: 1,
            self.preempt: 1,
            self.evict: 1,
            self.report: 1,
        }
        if self.manager.config.sliding_window:
            kinds[self.swa_evict] = 4
        if self.manager.config.num_states:
            kinds |= {self.take_state: 2, self.free_state: 1}
        if self.rarely():  # in any configuration
            kinds |= {self.swa_evict: 1, self.take_state: 1, self.free_state: 1}
        kind = self.random.choices(list(kinds), list(kinds.values()))[0]
        return kind() or self.op()

    def rarely(self) -> bool:
        return self.random.randrange(10) == 9

    def some(self, able: list[str]) -> list[str]:
        """A few of those that are able, rarely a few of all; none if there are none."""
        able = self.all_names() if self.rarely() else able
        return self.random.sample(able, self.random.randint(min(1, len(able)), min(3, len(able))))

    def one(self, able: list[str]) -> str | None:
        able = self.all_names() if self.rarely() else able
        return self.random.choice(able) if able else None

    def all_names(self) -> list[str]:
        return [*self.manager.requests, "unknown"]

    def runs(self) -> list[Run]:
        return list(self.manager.running.values())

    def token(self) -> int:
        return self.random.randrange(2)

    def open_session(self) -> Event:
        return events.OpenSession(self.random.choice(SESSIONS))

    def submit(self) -> Event | None:
        if len(self.manager.requests) >= 5:
            return None
        self.submitted += 1
        req = "r1" if self.rarely() and "r1" in self.manager.requests else f"r{self.submitted}"
        tokens: list[Element] = [self.random.choice(("k0", "k1")) for _ in range(self.random.randrange(3))]
        tokens += [self.token() for _ in range(self.random.randint(0, 2 * self.manager.config.page_size))]
        slot = self.manager.session_cache.slots.get(session := self.random.choice(SESSIONS))
        if slot is None or not self.random.randrange(3):
            return events.Submit(req, tokens, session if self.rarely() else None)
        if len(slot.history) and not self.rarely():
            tokens = slot.history.elements() + [token for token in tokens if isinstance(token, int)]
        return events.Submit(req, tokens, session)

    def match_prefix(self) -> Event | None:
        req = self.one([req for req in self.manager.requests if req not in self.manager.running])
        return events.MatchPrefix(req) if req else None

    def extend(self) -> Event | None:
        matched = [req for req, request in self.manager.requests.items() if request.prefix_len is not None]
        chunked = [req for req in self.manager.chunked if not self.manager.running[req].prepared_end]
        batch = []
        for req in self.some(matched + chunked):
            request = self.manager.requests.get(req)
            length = len(request.tokens) if request else 1
            batch.append((req, length if self.random.randrange(3) else self.random.randint(1, length)))
        return events.Extend(batch) if batch else None

    def decode(self) -> Event | None:
        able = [
            run.name
            for run in self.runs()
            if not run.prepared_end and not run.mid_prefill and run.kv.kv_committed_len < run.promised_len
        ]
        reqs = self.some([req for req in able if self.rarely() or not self.manager.running[req].drafts])
        speculative = self.rarely() if self.manager.config.num_states else self.random.randrange(2)
        return events.Decode(reqs, self.random.randint(2, 5) if speculative else 1) if reqs else None

    def launch(self) -> Event | None:
        self.launches += 1
        reqs = self.some([run.name for run in self.runs() if run.prepared_end])
        return events.Launch(self.launches, reqs) if reqs else None

    def complete(self) -> Event | None:
        in_flight = self.manager.launches
        if not in_flight:
            return None
        launch = in_flight[-1 if self.rarely() else 0]
        reqs = self.all_names() if self.rarely() else list(launch.sampled)
        return events.Complete(launch.number, {req: self.token() for req in reqs})

    def verify(self) -> Event | None:
        req = self.one([run.name for run in self.runs() if run.verifiable])
        accepted = self.random.randint(1, 4)
        kept = accepted if self.random.randrange(4) else self.random.randint(1, accepted)
        return events.Verify(req, accepted, [self.token() for _ in range(kept)]) if req else None

    def cache_unfinished(self) -> Event | None:
        req = self.one([run.name for run in self.runs() if not run.prepared_end])
        return events.CacheUnfinished(req, (req in self.manager.chunked) != self.rarely()) if req else None

    def finish(self) -> Event | None:
        req = self.one([run.name for run in self.runs() if not run.prepared_end and not run.mid_prefill])
        return events.Finish(req) if req else None

    def retract(self) -> Event | None:
        req = self.one(list(self.manager.running))
        return events.Retract(req) if req else None

    def abort(self) -> Event | None:
        req = self.one(list(self.manager.requests))
        return events.Abort(req) if req else None

    def close_session(self) -> Event:
        return events.CloseSession(self.random.choice(SESSIONS))

    def preempt(self) -> Event:
        return events.Preempt(self.random.choice(SESSIONS))

    def swa_evict(self) -> Event | None:
        req = self.one(list(self.manager.running))
        return events.SwaEvict(req) if req else None

    def take_state(self) -> Event | None:
        req = self.one([req for req, request in self.manager.requests.items() if request.prefix_len is not None])
        return events.TakeState(req) if req else None

    def free_state(self) -> Event | None:
        req = self.one([req for req, request in self.manager.requests.items() if request.state is not None])
        return events.FreeState(req) if req else None

    def evict(self) -> Event:
        config, n, more = self.manager.config, self.random.randint(0, 6), self.random.randint(0, 3)
        return events.Evict(
            n,
            window=more if config.sliding_window or self.rarely() else 0,
            states=more if config.num_states or self.rarely() else 0,
        )

    def report(self) -> Event:
        return events.Report("idle" if self.token() else "busy")
