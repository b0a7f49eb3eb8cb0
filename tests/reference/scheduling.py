"""Schedulers on the reference, where the model checks every operation and answer; and their traffic."""

import random
from collections.abc import Iterable, Iterator
from itertools import product
from typing import Any

import pytest

from kvconform.oracle import Model
from kvconform.proxy import OracleProxy
from kvref.manager import Manager
from kvref.scheduler import Scheduler
from kvref.scheduler.policy import SchedulerConfig
from kvref.scheduler.req import GenerateReq
from kvspec.events import (
    A,
    Complete,
    Config,
    Operation,
    Report,
    Verify,
)
from kvspec.tokens import Element

PLAIN = SchedulerConfig()
ROOMY = Config(page_size=4, num_pages=1000, num_rows=8, max_context_len=4000)


class Watched:
    """The reference under the eye of the model; remembers what was done."""

    def __init__(self, memory: Config) -> None:
        self.model = Model(memory)
        self.done: list[Operation[Any]] = []
        self.most_mid_prefill = 0
        self._checked = OracleProxy(Manager(memory), self.model, record=self.done.append, snapshot_every=50)

    def __call__(self, op: Operation[A], /) -> A:
        answer = self._checked(op)
        self.most_mid_prefill = max(self.most_mid_prefill, len(self.model.state.mid_prefill))
        return answer

    def all(self, kind: type[Operation[Any]]) -> list[Any]:
        """The operations of one kind that were carried out."""
        return [op for op in self.done if isinstance(op, kind) and op.refused is None]


def run(memory: Config, requests: Iterable[GenerateReq], config: SchedulerConfig = PLAIN) -> tuple[Watched, Scheduler]:
    """Run requests to their end; nothing may be held then."""
    watched = Watched(memory)
    scheduler = Scheduler(watched, memory, requests, config)
    for _ in range(20_000):
        if not scheduler.cycle():
            break
    else:
        pytest.fail("this never ends")
    watched(Report("idle"))
    state = watched.model.state
    assert not (state.requests or state.sessions or state.flights or state.rows or state.store.pins)
    return watched, scheduler


def request(name: str, prompt_len: int, output_len: int, **more: Any) -> GenerateReq:
    """A request that shares no tokens with others."""
    first = 1_000_000 * (1 + sum(ord(char) * 131**place for place, char in enumerate(name)))
    return GenerateReq(
        name, [*range(first, first + prompt_len)], range(first + 500_000, first + 500_000 + output_len), **more
    )


def traffic(count: int, seed: int, page_size: int) -> Iterator[GenerateReq]:
    """Plain requests of three families that share prefixes, and the turns of six sessions, mixed."""
    draw = random.Random(seed)
    owner = [draw.choice([None, None, *range(6)]) for _ in range(count)]
    histories: dict[int, list[Element]] = {}
    for index in range(count):
        first = index << 24
        outputs = range(first + (1 << 20), first + (1 << 20) + draw.randint(1, 12))
        session = owner[index]
        tokens: list[Element]
        if session is None:
            family = draw.randint(0, 2)
            tokens = [f"{family}.{page}" for page in range(draw.randint(0, 4))]
            tokens += range(first, first + draw.randint(1, 3 * page_size))
            yield GenerateReq(f"r{index}", tokens, outputs)
            continue
        tokens = list(histories.get(session) or [f"0.{page}" for page in range(draw.randint(0, 3))])
        tokens += range(first, first + draw.randint(0 if session in histories else 1, 2 * page_size))
        histories[session] = [*tokens, *outputs]
        yield GenerateReq(f"r{index}", tokens, outputs, f"s{session}", session not in owner[index + 1 :])


MODES = [
    SchedulerConfig(
        max_prefill_tokens=budget,
        chunked_prefill_size=chunk,
        overlap=overlap,
        mixed_chunk=mixed_chunk,
        drafts=drafts,
        **dict.fromkeys(("retract_interval", "abort_interval", "close_interval"), interval),
    )
    for overlap, mixed_chunk, drafts, (budget, chunk), interval in product(
        (False, True), (False, True), (0, 3), ((40, 13), (17, 17)), (0, 3)
    )
]


def outputs_of(count: int, page_size: int) -> dict[str, list[int]]:
    return {one.name: list(one.outputs) for one in traffic(count, page_size, page_size)}


def sampled(watched: Watched) -> dict[str, list[int]]:
    """The tokens that each request got."""
    tokens: dict[str, list[int]] = {}
    for op in watched.done:
        if isinstance(op, Complete):
            for req, token in op.tokens.items():
                tokens.setdefault(req, []).append(token)
        elif isinstance(op, Verify):
            tokens.setdefault(op.req, []).extend(op.tokens)
    return tokens
