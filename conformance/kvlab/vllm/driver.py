"""A drive: vLLM's own scheduler under random overlapping traffic, with launches that complete later."""

import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any

from kvlab.device import Point, stood_in
from kvlab.traffic import last_ones
from kvlab.vllm.engine import configured, fitting, make_request, make_scheduler, offloading_of
from kvlab.vllm.workload import Workload

QUEUES = ("running", "waiting", "skipped_waiting", "kv_holding_waiting")
"""Where releases keep their requests."""

DRAIN = 1000
"""Steps in which the last requests end, once no load fails and no request is aborted any more."""


@dataclass
class Launch:
    """One `schedule()`: what it was to compute, and whose tokens it samples."""

    output: Any
    sampling: set[str]
    reported: Any = None
    """The report of a stub worker with it."""
    computed: Point | None = None
    """Where its stream has computed it, if there is one."""


@dataclass
class Drive:
    """One workload on one scheduler. `run` ends when every request has ended and nothing is on its way.

    The last requests are neither aborted nor do their transfers fail: they end by themselves, or never.
    """

    work: Workload
    scheduler: Any = field(init=False)
    happened: Counter[str] = field(default_factory=Counter)
    """Launches and preemptions, counted."""
    _dice: random.Random = field(init=False)
    _in_flight: deque[Launch] = field(default_factory=deque)
    _arrived: int = 0
    _turns: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._dice = random.Random(self.work.seed + 2)
        self.work = fitting(self.work)
        self.scheduler = make_scheduler(self.work)
        self._worker: Any = None
        if self.work.offload:
            self._worker = offloading_of(self.work).Worker(self.work, *configured(self.work))

    def run(self, steps: int = 5000) -> Counter[str]:
        """Run to the end.

        Raises:
            StuckError: requests are left after `steps` steps, or `DRAIN` steps after the last fault.
            EngineGaveUp: the engine raised an error.
        """
        done, calm = 0, False
        while done < steps:
            last = self._arrived >= self.work.requests and len(self.scheduler.requests) <= last_ones(self.work.running)
            if last and not calm:
                calm, steps = True, min(steps, done + DRAIN)
                self._calm_down()
            self._traffic()
            self._step()
            done += 1
            if self._done():
                self.happened["drained"] += calm
                return self.happened
        left = self.scheduler.requests
        raise StuckError(f"{len(left)} requests are left after {done} steps: {self._standing(left)}")

    def _calm_down(self) -> None:
        """From now on no load fails, and no request is aborted."""
        self.work = replace(self.work, abort=0.0, reset=0.0, failing=0.0)
        if self.work.connector:
            self.scheduler.connector.work = self.work

    def _standing(self, left: dict[str, Any]) -> str:
        """Where requests are that never end: of one that no queue has, nothing will ever take it up."""
        queues = {request.request_id: name for name in QUEUES for request in getattr(self.scheduler, name, ())}
        unfinished = {name for name, request in left.items() if not request.is_finished()}
        if lost := unfinished - queues.keys():
            return f"{len(lost)} in no queue"
        if not self.scheduler.has_requests():
            return f"the scheduler says that it has none, each {'in a queue' if unfinished else 'finished'}"
        return "each running" if {queues[name] for name in unfinished} == {"running"} else "each in a queue"

    def _engine(self, do: Callable[..., Any], *args: Any) -> Any:
        try:
            return do(*args)
        except Exception as error:
            raise EngineGaveUp(f"{type(error).__name__}: {error}") from error

    def _done(self) -> bool:
        left = self.scheduler.requests if self._worker is None else self.scheduler.has_requests()
        return self._arrived >= self.work.requests and not left and not self._in_flight

    def _step(self) -> None:
        """Launch if there is room; process the oldest launch if there is none, or now and then."""
        if len(self._in_flight) < self.work.launches and self.scheduler.has_requests():
            before = self._preemptions()
            output = self._engine(self.scheduler.schedule)
            self.happened["preemptions"] += self._preemptions() - before
            self.happened["launches"] += bool(output.total_num_scheduled_tokens)
            requests = self.scheduler.requests
            sampling = {name for name in output.num_scheduled_tokens if not requests[name].is_prefill_chunk}
            worked = self._engine(self._worker.execute, output) if self._worker is not None else (None, None)
            self._in_flight.append(Launch(output, sampling, *worked))
        full = len(self._in_flight) == self.work.launches
        if self._in_flight and (full or not self.scheduler.has_requests() or self._dice.random() < 0.3):
            self._complete(self._in_flight.popleft())

    def _preemptions(self) -> int:
        return sum(request.num_preemptions for request in self.scheduler.requests.values())

    def _complete(self, launch: Launch) -> None:
        from vllm.v1.outputs import DraftTokenIds, ModelRunnerOutput

        if self._dice.random() < self.work.abort:
            self._abort()
        output = launch.output
        names = list(output.num_scheduled_tokens)
        sampled = [self._sample(output, name) if name in launch.sampling else [] for name in names]
        result = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: number for number, name in enumerate(names)},
            sampled_token_ids=sampled,
        )
        if launch.computed is not None:
            launch.computed.stream.finish(launch.computed.entries)
            result.kv_connector_output = launch.reported
        elif self.scheduler.connector is not None:
            result.kv_connector_output = self.scheduler.connector.arrived(output.kv_connector_metadata)
        self._answered(self._engine(self.scheduler.update_from_output, output, result))
        if self.work.drafts and self.work.launches == 1:
            drafted = [[self._dice.randrange(1, 9) for _ in range(self.work.drafts)] for _ in names]
            self.scheduler.update_draft_token_ids(DraftTokenIds(names, drafted))

    def _answered(self, outputs: dict[int, Any]) -> None:
        """Clients get what a launch has sampled."""

    def _sample(self, output: Any, name: str) -> list[int]:
        """The token that is sampled, and before it as many of the drafts as were right."""
        drafts = len(output.scheduled_spec_decode_tokens.get(name, ()))
        accepted = self._dice.randrange(drafts + 1)
        request = self.scheduler.requests.get(name)
        last = list(request.all_token_ids[-2:]) if request is not None else [1, 1]
        sampled: list[int] = []
        for _ in range(accepted + 1):
            last = [last[-1], self._token(last)]
            sampled.append(last[-1])
        return sampled

    def _token(self, last: list[int]) -> int:
        """A greedy model's next token, so that equal prompts get equal tokens; 0 ends a request."""
        return 1 + (5 * last[0] + 3 * last[-1]) % 8 if self._dice.random() < 0.97 else 0

    def _traffic(self) -> None:
        if self._arrived < self.work.requests and self._dice.random() < 0.5:
            self._arrive()
        if self._dice.random() < self.work.abort / 2:
            self._abort()
        if self._dice.random() < self.work.reset:
            self._reset()
        if self._turns and self._dice.random() < 0.5:
            self._next_turn(self._dice.choice(sorted(self._turns)))

    def _prompt(self) -> list[int]:
        if self.work.prompts:
            return list(self.work.prompts[(self._arrived - 1) % len(self.work.prompts)])
        document = list(self._dice.choice(self.work.documents or ((1, 2, 3, 4, 5, 6, 7, 8),)))
        prompt = document[: self._dice.randrange(1, len(document) + 1)]
        prompt += [self._dice.randrange(1, 9) for _ in range(self._dice.randrange(8))]
        return prompt[: self.work.longest // 2]

    def _arrive(self) -> None:
        name = f"r{self._arrived}"
        self._arrived += 1
        more: dict[str, Any] = {"priority": self._dice.randrange(3), "arrival_time": float(self._arrived)}
        if self._dice.random() < self.work.sessions:
            self._turns[name] = self._dice.randrange(1, 4)
            more["resumable"] = True
        request = make_request(self.work, name, self._prompt(), self._dice.randrange(1, 12), **more)
        self.scheduler.add_request(request)

    def _next_turn(self, name: str) -> None:
        """A session's next input, or its end."""
        if name not in self.scheduler.requests:
            del self._turns[name]
            return
        self._turns[name] -= 1
        last = not self._turns[name]
        prompt = [self._dice.randrange(1, 3) for _ in range(self._dice.randrange(1, 6))]
        update = make_request(self.work, name, prompt, self._dice.randrange(1, 8), resumable=not last)
        self._engine(self.scheduler.add_request, update)
        if last:
            del self._turns[name]

    def _abort(self) -> None:
        from vllm.v1.request import RequestStatus

        if self.scheduler.requests:
            name = self._dice.choice(sorted(self.scheduler.requests))
            self._engine(self.scheduler.finish_requests, name, RequestStatus.FINISHED_ABORTED)

    def _reset(self) -> None:
        if self._worker is not None:
            # Older releases refuse to reset what is offloaded. Running requests cannot be reset in any, while
            # transfers hold what they have: the engine says so itself.
            what = (False, True) if self._worker.can_reset else (False,)
            self._engine(self.scheduler.reset_prefix_cache, *what)
        else:
            self._engine(self.scheduler.reset_prefix_cache, self._dice.random() < 0.7)


def driven(work: Workload) -> Counter[str]:
    """Drive one workload; as `Drive.run`."""
    if not work.offload:
        return Drive(work).run()
    import torch

    with stood_in(torch):
        return Drive(work).run()


class StuckError(Exception):
    """Requests that never end."""


class EngineGaveUp(Exception):
    """The engine raised an error; its cause is that error."""
