"""Stands in for vLLM's model runner: it keeps the tokens that the scheduler sends, and samples the expected ones."""

import random
from collections.abc import Set
from dataclasses import dataclass
from typing import Any

from kvattach.vllm.states import Move
from kvlab.tokens import Tokens
from kvlab.vllm.workload import Workload

AT = "schedule"


@dataclass
class _Kept:
    """The runner's record of a request."""

    tokens: list[int]
    computed: int
    """The end of its computed tokens."""
    rejected: int = 0
    """The number of drafts that its launches in flight have rejected. The scheduler counts them as computed."""


@dataclass
class Step:
    """The tokens that a launch samples, and the number of drafts of each request that it rejects."""

    sampled: dict[str, list[int]]
    rejected: list[tuple[_Kept, int]]
    moves: dict[str, Move]
    """Request -> the effect of the launch on its recurrent states."""

    def complete(self) -> None:
        """The scheduler has got the result."""
        for kept, drafts in self.rejected:
            kept.rejected -= drafts


class Runner:
    """The tokens of each request, according to the messages of one scheduler."""

    def __init__(self, work: Workload, tokens: Tokens, dice: random.Random) -> None:
        """Make a runner without requests."""
        self._tokens, self._dice = tokens, dice
        self._goes_back = bool(work.failing)
        """Whether a launch may recompute tokens, after a failed load."""
        self._kept: dict[str, _Kept] = {}

    def execute(self, output: Any, sampling: Set[str]) -> Step:
        """Launch one output of the scheduler; the requests in `sampling` get a token."""
        starts = self._received(output)
        step = Step({}, [], {})
        for name, count in output.num_scheduled_tokens.items():
            kept, drafts = self._kept[name], output.scheduled_spec_decode_tokens.get(name, ())
            start, expected = starts[name], kept.computed + kept.rejected
            if start > expected or not self._goes_back:
                self._tokens.begin(name, expected, start, AT)
            start -= kept.rejected
            stop = start + count - len(drafts)
            taken = kept.tokens[start:stop]
            self._tokens.consume(name, start, taken + [-1] * (stop - start - len(taken)), AT)
            kept.computed = stop
            step.moves[name] = Move(start, count, len(drafts), 1)
            if name in sampling:
                sampled = self._sampled(name, stop, drafts)
                step.sampled[name] = sampled
                kept.tokens[stop : stop + len(sampled)] = sampled
                kept.computed += len(sampled) - 1
                step.moves[name] = Move(start, count, len(drafts), len(sampled))
                rejected = len(drafts) + 1 - len(sampled)
                kept.rejected += rejected
                step.rejected.append((kept, rejected))
        return step

    def _sampled(self, name: str, position: int, drafts: Any) -> list[int]:
        """The accepted drafts and the token after them. If drafts are unknown, their number is random."""
        accepted = self._dice.randrange(len(drafts) + 1)
        sampled: list[int] = []
        for number, draft in enumerate((*drafts, None)):
            token = self._tokens.sample(name, position + number)
            sampled.append(token)
            if draft != token and (draft != -1 or number >= accepted):
                break
        return sampled

    def drafted(self, name: str, count: int) -> list[int]:
        """Drafts for a request's next step, each of them probably right."""
        if name not in self._kept:
            return [1] * count
        position = len(self._kept[name].tokens)
        due = [self._tokens.due(name, position + number) for number in range(count)]
        return [token if self._dice.random() < 0.7 else 1 for token in due]

    def _received(self, output: Any) -> dict[str, int]:
        """Take in the scheduler's message. Returns the position at which each request's launch begins."""
        starts = {}
        for gone in (output.finished_req_ids, getattr(output, "preempted_req_ids", None) or ()):
            for name in gone:
                self._kept.pop(name, None)
        for new in output.scheduled_new_reqs:
            # The newer runner also gets the answer tokens of a preempted request.
            sent = getattr(new, "prefill_token_ids", None) or new.prompt_token_ids
            starts[new.req_id] = new.num_computed_tokens
            self._kept[new.req_id] = _Kept(list(sent), new.num_computed_tokens)
        cached = output.scheduled_cached_reqs
        for name, start in zip(cached.req_ids, cached.num_computed_tokens, strict=True):
            starts[name] = start
            sent = cached.all_token_ids.get(name)
            if name in cached.resumed_req_ids:
                self._kept[name] = _Kept(list(sent), start)
            elif sent is not None:
                self._kept[name].tokens = list(sent)
        return starts
