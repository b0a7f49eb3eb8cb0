"""Drives vLLM's own scheduler with random overlapping traffic, and with launches that complete later."""

import random
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from types import SimpleNamespace
from typing import Any

from kvcheck import Finding
from kvlab.device import Point, stood_in
from kvlab.tokens import Reason, Tokens, ignored
from kvlab.traffic import last_ones
from kvlab.vllm.engine import configured, fitting, make_request, make_scheduler, offloading_of
from kvlab.vllm.pictures import illustrated
from kvlab.vllm.runner import Runner, Step
from kvlab.vllm.workload import Workload

QUEUES = ("running", "waiting", "skipped_waiting", "kv_holding_waiting")
"""The attributes in which releases queue their requests."""

ENDS: dict[str, Reason] = {"STOP": "done", "LENGTH": "done"}
"""The release's finish reason -> ours, for requests that end by themselves."""

DRAIN = 1000
"""The most steps in which the last requests end, after the last fault."""


@dataclass
class Launch:
    """One `schedule()`: its output, and the tokens that its launch samples."""

    output: Any
    step: Step
    reported: Any = None
    """The report of the stub worker, if any."""
    computed: Point | None = None
    """The point of the stream at which it is computed, if there is a stream."""


@dataclass
class Drive:
    """One workload on one scheduler. `run` ends when every request has ended and nothing is in flight.

    The last requests are not aborted, and their transfers do not fail: they end by themselves, or never.
    """

    work: Workload
    report: Callable[[Finding], None] = ignored
    """Takes findings on tokens."""
    scheduler: Any = field(init=False)
    happened: Counter[str] = field(default_factory=Counter)
    """The numbers of launches and preemptions."""
    _dice: random.Random = field(init=False)
    _names: random.Random = field(init=False)
    _in_flight: deque[Launch] = field(default_factory=deque)
    _arrived: int = 0
    _turns: dict[str, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._dice = random.Random(self.work.seed + 2)
        self._names = random.Random(self.work.seed + 7)
        self.work = fitting(self.work)
        self.scheduler = make_scheduler(self.work)
        self._tokens = Tokens(self.work.seed, self.report, ends=0.03, longest=self.work.longest)
        self._runner = Runner(self.work, self._tokens, self._dice)
        self._moves = bool(self.work.drafts) and any(kind == "state" for kind, _, _ in self.work.groups)
        if self._moves:
            # The hooks wait for the accepted drafts.
            self.scheduler.kvspec_moved = None
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
        """Where the stuck requests are. A request in no queue is never scheduled again."""
        queues = {request.request_id: name for name in QUEUES for request in getattr(self.scheduler, name, ())}
        unfinished = {name for name, request in left.items() if not request.is_finished()}
        if lost := unfinished - queues.keys():
            return f"{len(lost)} in no queue"
        if not self.scheduler.has_requests():
            return f"the scheduler says that it has none, each {'in a queue' if unfinished else 'finished'}"
        if any(self._lacks_room(left[name]) for name in unfinished):
            return "one of them at an image without room"
        return "each running" if {queues[name] for name in unfinished} == {"running"} else "each in a queue"

    def _lacks_room(self, request: Any) -> bool:
        """Whether the next tokens of a request are an image for which the encoder's cache cannot make room."""
        cache, computed = self.scheduler.encoder_cache_manager, request.num_computed_tokens
        images = [(one.identifier, one.mm_position) for one in request.mm_features]
        return any(
            image not in cache.cached
            and place.offset - 1 <= computed < place.offset + place.length
            and place.length > cache.num_freeable_slots
            for image, place in images
        )

    def _engine(self, do: Callable[..., Any], *args: Any) -> Any:
        try:
            return do(*args)
        except Exception as error:
            raise EngineGaveUp(f"{type(error).__name__}: {error}") from error

    def _done(self) -> bool:
        left = self.scheduler.requests if self._worker is None else self.scheduler.has_requests()
        return self._arrived >= self.work.requests and not left and not self._in_flight

    def _step(self) -> None:
        """Launch if possible; process the oldest launch if no further one fits, or now and then."""
        if len(self._in_flight) < self.work.launches and self.scheduler.has_requests():
            before = self._preemptions()
            output = self._engine(self.scheduler.schedule)
            self.happened["preemptions"] += self._preemptions() - before
            self.happened["launches"] += bool(output.total_num_scheduled_tokens)
            requests = self.scheduler.requests
            sampling = {name for name in output.num_scheduled_tokens if not requests[name].is_prefill_chunk}
            step = self._runner.execute(output, sampling)
            if self._moves and self.scheduler.kvspec_moved is not None:
                self.scheduler.kvspec_moved(step.moves)
            worked = self._engine(self._worker.execute, output) if self._worker is not None else (None, None)
            self._in_flight.append(Launch(output, step, *worked))
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
        result = ModelRunnerOutput(
            req_ids=names,
            req_id_to_index={name: number for number, name in enumerate(names)},
            sampled_token_ids=[launch.step.sampled.get(name, []) for name in names],
        )
        if launch.computed is not None:
            launch.computed.stream.finish(launch.computed.entries)
            result.kv_connector_output = launch.reported
        elif self.scheduler.connector is not None:
            result.kv_connector_output = self.scheduler.connector.arrived(output.kv_connector_metadata)
        launch.step.complete()
        self._answered(self._engine(self.scheduler.update_from_output, output, result))
        if self.work.drafts and self.work.launches == 1:
            drafted = [self._runner.drafted(name, self.work.drafts) for name in names]
            self.scheduler.update_draft_token_ids(DraftTokenIds(names, drafted))

    def _answered(self, outputs: dict[int, Any]) -> None:
        """Give the clients their tokens."""
        for answered in outputs.values():
            for one in answered.outputs:
                reason = "" if one.finish_reason is None else ENDS.get(one.finish_reason.name, "abort")
                self._tokens.answer(one.request_id, one.new_token_ids, "update_from_output", reason)

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
        if self._tokens.texts and self._dice.random() < 0.3:
            # A chat continues: the next prompt contains an answer.
            document = list(self._dice.choice(self._tokens.texts))
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
        more |= self._namespace()
        prompt, most = self._prompt(), self._dice.randrange(1, 12)
        prompt, images = self._illustrated(prompt)
        self._tokens.arrive(name, prompt, most)
        self.scheduler.add_request(make_request(self.work, name, prompt, most, **more, **images))

    def _illustrated(self, prompt: list[int]) -> tuple[list[int], dict[str, Any]]:
        """A prompt, at random with images, and the request's fields for them."""
        if not self.work.images or self._names.random() >= self.work.images:
            return prompt, {}
        prompt, images = illustrated(prompt, self._names, self.work.longest // 2)
        return prompt, {"mm_features": images}

    def _namespace(self) -> dict[str, Any]:
        """A request's fields for its adapter and salt, if any. An adapter's number is unique, its name is not."""
        more: dict[str, Any] = {}
        if self.work.adapters and self._names.random() < self.work.adapters:
            number = self._names.randrange(2 * self.work.versions)
            name = "ab"[number % 2]
            path, unique = f"/{name}/{number // 2}", 1 + number
            more["lora_request"] = SimpleNamespace(
                name=name, lora_name=name, lora_int_id=unique, lora_path=path, adapter_id=unique
            )
        if self.work.salts and self._names.random() < self.work.salts:
            more["cache_salt"] = self._names.choice("abs")
        return more

    def _next_turn(self, name: str) -> None:
        """A session's next input, or its end."""
        if name not in self.scheduler.requests:
            del self._turns[name]
            return
        self._turns[name] -= 1
        last = not self._turns[name]
        prompt = [self._dice.randrange(1, 3) for _ in range(self._dice.randrange(1, 6))]
        most = self._dice.randrange(1, 8)
        prompt, images = self._illustrated(prompt)
        if not last:
            self._tokens.turn(name, prompt, most)
        turn = make_request(self.work, name, prompt, most, resumable=not last, **images)
        self._engine(self.scheduler.add_request, turn)
        if last:
            del self._turns[name]

    def _abort(self) -> None:
        from vllm.v1.request import RequestStatus

        if self.scheduler.requests:
            name = self._dice.choice(sorted(self.scheduler.requests))
            self._tokens.answer(name, (), "", "abort")
            self._engine(self.scheduler.finish_requests, name, RequestStatus.FINISHED_ABORTED)

    def _reset(self) -> None:
        if self._worker is not None:
            # Older releases refuse to reset offloaded pages. No release resets running requests while transfers hold
            # their pages: the engine says so itself.
            what = (False, True) if self._worker.can_reset else (False,)
            self._engine(self.scheduler.reset_prefix_cache, *what)
        else:
            self._engine(self.scheduler.reset_prefix_cache, self._dice.random() < 0.7)


def driven(work: Workload, report: Callable[[Finding], None] = ignored) -> Counter[str]:
    """Drive one workload, as `Drive.run` does."""
    if not work.offload:
        return Drive(work, report).run()
    import torch

    with stood_in(torch, work.seed):
        return Drive(work, report).run()


class StuckError(Exception):
    """Some requests never end."""


class EngineGaveUp(Exception):
    """The engine raised an error; its cause is that error."""
