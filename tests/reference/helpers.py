"""What the tests of the reference share: the reference beside the model, and traffic for both."""

from random import Random

from kvref import Manager
from kvspec import events, invariants
from kvspec.events import Config, Event, Refusal
from kvspec.model import Model
from kvspec.tokens import Element

REQS = [f"r{i}" for i in range(5)]
SESSIONS = ["s0", "s1"]


def carry_out(manager: Manager, op: Event) -> None:
    """Let the reference carry an operation out and write down what it says."""
    arguments = [getattr(op, field) for field in op.__struct_fields__ if field not in ("obs", "refused")]
    try:
        op.obs = getattr(manager, str(op.__struct_config__.tag))(*arguments)
    except Refusal as refusal:
        op.refused = refusal.refused


class Pair:
    """The reference and the model, side by side: the model judges each answer of the reference."""

    def __init__(self, config: Config) -> None:
        self.manager = Manager(config)
        self.model = Model(config)
        self.done: list[Event] = []

    def step(self, op: Event) -> None:
        """Carry one operation out and judge the answer; a refused one must have changed nothing."""
        before = self.manager.snapshot()
        self.done.append(op)
        carry_out(self.manager, op)
        self.model.step(op)
        if op.refused is not None:
            assert self.manager.snapshot() == before

    def look(self) -> None:
        """Compare the whole state and the figures, and check every rule on the state that both agree on."""
        self.model.step(events.Snapshot(obs=self.manager.snapshot()))
        self.model.step(events.Report(obs=self.manager.report()))
        invariants.check(self.model.state)


class Traffic:
    """Draws operations: mostly such that make sense in the manager's state, some that do not."""

    def __init__(self, random: Random, manager: Manager) -> None:
        self.random = random
        self.manager = manager
        self.launches = 0

    def op(self) -> Event:
        kinds = (
            (self.open_session, 2),
            (self.submit, 4),
            (self.match_prefix, 4),
            (self.extend, 6),
            (self.decode, 6),
            (self.launch, 7),
            (self.complete, 7),
            (self.verify, 3),
            (self.cache_unfinished, 3),
            (self.finish, 2),
            (self.retract, 2),
            (self.abort, 1),
            (self.close_session, 1),
            (self.preempt, 1),
            (self.evict, 1),
            (self.report, 1),
        )
        draw = self.random.choices([kind for kind, _ in kinds], [weight for _, weight in kinds])[0]
        return draw()

    def rarely(self) -> bool:
        return self.random.randrange(10) == 9

    def some(self, names: list[str]) -> list[str]:
        """A few of the names, but at least one; any name at all where none makes sense."""
        names = REQS if self.rarely() or not names else names
        return self.random.sample(names, self.random.randint(1, min(3, len(names))))

    def one(self, names: list[str]) -> str:
        return self.random.choice(REQS if self.rarely() or not names else names)

    def open_session(self) -> Event:
        return events.OpenSession(self.random.choice(SESSIONS))

    def submit(self) -> Event:
        req = self.one([req for req in REQS if req not in self.manager.requests])
        page_size = self.manager.config.page_size
        tokens: list[Element] = [self.random.choice(("k0", "k1")) for _ in range(self.random.randrange(3))]
        tokens += [self.random.randrange(2) for _ in range(self.random.randint(1, 2 * page_size))]
        if self.random.randrange(3):
            session = self.random.choice(SESSIONS)
            slot = self.manager.session_cache.slots.get(session)
            if slot is not None and len(slot.history) and not self.rarely():
                ids = [token for token in tokens if isinstance(token, int)]
                tokens = slot.history.elements() + ids[self.random.randrange(len(ids) + 1) :]
            return events.Submit(req, tokens, session)
        return events.Submit(req, tokens)

    def match_prefix(self) -> Event:
        return events.MatchPrefix(self.one([req for req in self.manager.requests if req not in self.manager.running]))

    def extend(self) -> Event:
        matched = [req for req, request in self.manager.requests.items() if request.prefix_len is not None]
        batch = []
        for req in self.some(matched + sorted(self.manager.chunked)):
            request = self.manager.requests.get(req)
            length = len(request.tokens) if request else 1
            batch.append((req, length if self.random.randrange(3) else self.random.randint(1, length)))
        return events.Extend(batch)

    def decode(self) -> Event:
        able = [
            run.name
            for run in self.manager.running.values()
            if not run.prepared_end and not run.mid_prefill and run.kv.kv_committed_len < run.promised_len
        ]
        return events.Decode(
            [req for req in self.some(able) if not self._speculates(req)] or able[:1],
            self.random.randint(2, 5) if self.random.randrange(2) else 1,
        )

    def _speculates(self, req: str) -> bool:
        run = self.manager.running.get(req)
        return bool(run and run.unverified) or any(req in launch.drafted for launch in self.manager.launches)

    def launch(self) -> Event:
        self.launches += 1
        return events.Launch(
            self.launches, self.some([run.name for run in self.manager.running.values() if run.prepared_end])
        )

    def complete(self) -> Event:
        in_flight = self.manager.launches
        if not in_flight:
            return events.Complete(self.launches)
        oldest = in_flight[-1 if self.rarely() else 0]
        reqs = REQS[:1] if self.rarely() else list(oldest.sampled)
        return events.Complete(oldest.number, {req: self.random.randrange(2) for req in reqs})

    def verify(self) -> Event:
        accepted = self.random.randint(1, 5)
        kept = accepted if self.random.randrange(4) else self.random.randint(1, accepted)
        waits = [run.name for run in self.manager.running.values() if run.unverified]
        return events.Verify(self.one(waits), accepted, [self.random.randrange(2) for _ in range(kept)])

    def cache_unfinished(self) -> Event:
        req = self.one(list(self.manager.running))
        return events.CacheUnfinished(req, (req in self.manager.chunked) != self.rarely())

    def finish(self) -> Event:
        return events.Finish(self.one(list(self.manager.running)))

    def retract(self) -> Event:
        return events.Retract(self.one(list(self.manager.running)))

    def abort(self) -> Event:
        return events.Abort(self.one(list(self.manager.requests)))

    def close_session(self) -> Event:
        return events.CloseSession(self.random.choice(SESSIONS))

    def preempt(self) -> Event:
        return events.Preempt(self.random.choice(SESSIONS))

    def evict(self) -> Event:
        return events.Evict(self.random.randint(0, 6))

    def report(self) -> Event:
        return events.Report("idle" if self.random.randrange(2) else "busy")
