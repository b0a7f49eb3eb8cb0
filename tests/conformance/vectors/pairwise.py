"""Writes the vectors in `ways-out/`: each way out of the system, met with everything that may be going on.

    python -m tests.conformance.vectors.pairwise

For every two values of two factors there is a vector that has both, and for some factors every three; covertable picks
the combinations. All follow the same course: A runs, in a session or not, beside others; launches are in flight; A
leaves; N waits for A's row, which is the only one that may become free, and gets it when the last launch that reads it
has completed; A comes again by its name as soon as possible; all requests leave. Expected refusals and rows follow from
the model.

Not here: vectors written by hand (all other folders).
"""

from collections.abc import Iterator
from itertools import count
from pathlib import Path
from typing import Any

import msgspec

from kvconform.oracle import Model
from kvconform.traces.expect import Expect
from kvconform.vectors.files import FOLDER
from kvspec.events import (
    Abort,
    CacheUnfinished,
    CloseSession,
    Complete,
    Config,
    Decode,
    Evict,
    Extend,
    Figures,
    Finish,
    Launch,
    MatchPrefix,
    OpenSession,
    Operation,
    Preempt,
    Refusal,
    Report,
    Retract,
    Snapshot,
    Submit,
    SwaEvict,
    Verify,
)
from kvspec.model import looking
from kvtrace.header import VERSION
from kvtrace.operations import Header
from tests.conformance.vectors.cases import Case, cases

ROOMY = 4096
"""Pages and slots of the memory in which it is found out how many are needed."""
SPARE = 2
"""Pages and slots more than are needed: an engine may publish, and give windows back, later than the model does."""


class Scenario:
    """The operations of a vector, carried out on the model as they are scenario."""

    def __init__(self, case: Case, config: Config) -> None:
        """Begin in an empty memory."""
        self.case = case
        self.model = Model(config)
        self.lines: list[Operation[Any] | Expect] = []
        self.least_free = [config.num_pages, config.num_window_pages, config.num_states]
        self._launches = count(1)
        self._sampled = count(900)

    def do(self, op: Operation[Any]) -> bool:
        """Carry `op` out; whether it was not refused. A refusal is expected of every implementation."""
        self.lines.append(op)
        state = self.model.state
        try:
            self.model.step(msgspec.structs.replace(op))
        except Refusal as refusal:
            refused = refusal.refused
            self.lines.append(Expect(refused=refused.rule, rows_short=refused.rows_short or None))
            return False
        free = state.free_pages, state.free_window_pages, state.free_states
        self.least_free = [min(pair) for pair in zip(self.least_free, free, strict=True)]
        return True

    def expect_rows(self) -> None:
        """Say how many rows are free, and how many are withheld."""
        figures = looking.figures(self.model.state)
        rows = Figures(rows_available=figures.rows_available, rows_withheld=figures.rows_withheld)
        self.lines.append(Expect(figures=rows))

    def launch(self, *reqs: str) -> None:
        """Launch the prepared work."""
        self.do(Launch(next(self._launches), list(reqs)))

    def complete(self) -> None:
        """The oldest launch completes, with the tokens that are due."""
        state = self.model.state
        oldest, passages = next(iter(state.flights.items()))
        due = [
            passage.req
            for passage in passages
            if passage.samples
            and (request := state.requests.get(passage.req)) is not None
            and request.running
            and request.run == passage.run
        ]
        self.do(Complete(oldest, {req: next(self._sampled) for req in due}))

    def flush(self) -> None:
        """Everything in flight completes."""
        while self.model.state.flights:
            self.complete()

    def live(self, req: str) -> None:
        """A matched and admitted request prefills, and finishes."""
        self.launch(req)
        self.flush()
        self.do(CacheUnfinished(req))
        self.do(Finish(req))

    def admit(self, req: str) -> bool:
        """Match and prefill all of a request; whether there was room."""
        self.do(MatchPrefix(req))
        return self.do(Extend([(req, len(self.model.state.requests[req].tokens))]))


def _prompt(case: Case, pages: int, more: int, begins: int = 0) -> list[Any]:
    """`pages` whole pages and some tokens; all prompts share the first page, and `begins` makes the rest differ."""
    size = case.page_size
    return [*range(size), *range(begins + size, begins + pages * size + more)]


def scenario_of(case: Case, config: Config) -> Scenario:
    """The scenario of one case, in a memory of these sizes."""
    scenario = Scenario(case, config)
    mates = ["B", "C"][: max(1, case.batch - 1)]
    session = None if case.session == "none" else "s"
    half = max(1, case.page_size // 2)
    prompt = _prompt(case, 2, half)
    if session is not None:
        scenario.do(OpenSession(session))
    if case.session == "later":
        scenario.do(Submit("A", prompt[: case.page_size + half], session))
        scenario.admit("A")
        scenario.live("A")
        history = scenario.model.state.sessions["s"].history.elements()
        prompt = [*history, *_prompt(case, 1, half, 300)]
    if case.mates == "turns":
        for mate in mates:
            _first_turn(scenario, mate)
    _begin(scenario, prompt, session, mates)
    _overlap(scenario, mates)
    if case.pool == "window":
        scenario.do(SwaEvict("A"))
    _leave(scenario, session)
    if case.mate == "leaves":
        scenario.do(Finish(mates.pop()))
    scenario.expect_rows()
    _follow(scenario, prompt, session, mates)
    return scenario


def _first_turn(scenario: Scenario, mate: str) -> None:
    """A session's first turn, so that `mate` brings a row."""
    size = scenario.case.page_size
    scenario.do(OpenSession(f"of {mate}"))
    scenario.do(Submit(mate, [*range(size), 2000 + ord(mate)], f"of {mate}"))
    scenario.admit(mate)
    scenario.live(mate)


def _begin(scenario: Scenario, prompt: list[Any], session: str | None, mates: list[str]) -> None:
    """A and those beside it prefill in one launch; A up to a chunk that ends within a page, or whole."""
    case = scenario.case
    scenario.do(Submit("A", prompt, session))
    for number, mate in enumerate(mates, start=1):
        own = f"of {mate}" if case.mates == "turns" else None
        text = _prompt(case, 3 - number, 1, 1000 * (number - 1))
        if own is not None:
            text = [*scenario.model.state.sessions[own].history.elements(), *text[-case.page_size - 1 :]]
        scenario.do(Submit(mate, text, own))
    for req in ["A", *mates]:
        scenario.do(MatchPrefix(req))
    request = scenario.model.state.requests["A"]
    end = len(request.tokens)
    if case.phase == "chunk":
        end = (request.prefix_len or 0) + 1
    scenario.do(Extend([("A", end), *((mate, len(scenario.model.state.requests[mate].tokens)) for mate in mates)]))
    scenario.launch("A", *mates)
    scenario.flush()
    scenario.do(CacheUnfinished("A", chunked=case.phase == "chunk"))
    for mate in mates:
        scenario.do(CacheUnfinished(mate))


def _overlap(scenario: Scenario, mates: list[str]) -> None:
    """Launches are handed over and stay in flight; without any, one is handed over and completes."""
    case = scenario.case
    flights = max(1, case.in_flight)
    reading = {"all": range(flights), "oldest": range(1), "newest": range(flights - 1, flights)}[case.readers]
    for number in range(flights):
        reqs = ["A", *mates[: case.batch - 1]] if number in reading else mates
        _step(scenario, reqs, last=number == reading[-1])
        scenario.launch(*reqs)
    if case.in_flight == 0:
        scenario.flush()
        if case.phase == "drafts":
            scenario.do(Verify("A", 2, [7, 8]))


def _step(scenario: Scenario, reqs: list[str], *, last: bool) -> None:
    """Prepare one more step of each."""
    case = scenario.case
    plain = list(reqs)
    if "A" in reqs and case.phase == "chunk":
        plain.remove("A")
        scenario.do(Extend([("A", scenario.model.state.requests["A"].seq_len + 1)]))
    elif "A" in reqs and case.phase == "drafts" and last:
        plain.remove("A")
        scenario.do(Decode(["A"], 3))
    if plain:
        scenario.do(Decode(plain))


def _leave(scenario: Scenario, session: str | None) -> None:
    """A leaves."""
    way = scenario.case.way
    if way == "close" and session is not None:
        scenario.do(CloseSession(session))
    release: Operation[Any] = Finish("A")
    if way == "retract":
        release = Retract("A")
    elif way == "abort" or scenario.case.phase == "chunk":
        release = Abort("A")
    scenario.do(release)
    if way == "preempt" and session is not None:
        scenario.do(Preempt(session))


def _follow(scenario: Scenario, prompt: list[Any], session: str | None, mates: list[str]) -> None:
    """N waits for A's row, A comes again as soon as possible, and all requests leave."""
    scenario.do(Submit("N", _prompt(scenario.case, 2, 1, 7000)))
    _come_again(scenario, prompt, session)
    if scenario.case.comeback == "aborted":
        scenario.do(MatchPrefix("A"))
        scenario.do(Abort("A"))
        _come_again(scenario, prompt, session)
    waiting, admitted = ["N", "A"], list[str]()
    _try(scenario, waiting, admitted)
    while scenario.model.state.flights:
        scenario.complete()
        scenario.expect_rows()
        _try(scenario, waiting, admitted)
    while admitted:
        scenario.live(admitted.pop(0))
        _try(scenario, waiting, admitted)
    if session is not None:
        scenario.do(CloseSession(session))
    _try(scenario, waiting, admitted)
    for req in admitted:
        scenario.live(req)
    for mate in mates:
        scenario.do(Finish(mate))
        scenario.do(Evict(ROOMY))
    for name in list(scenario.model.state.sessions):
        scenario.do(CloseSession(name))
    scenario.do(Report("idle"))
    scenario.expect_rows()
    scenario.do(Snapshot())


def _try(scenario: Scenario, waiting: list[str], admitted: list[str]) -> None:
    """Waiting requests ask for room. If N now has the only free row, it was A's."""
    for req in list(waiting):
        if scenario.admit(req):
            waiting.remove(req)
            admitted.append(req)
            left = scenario.case.mate == "leaves"
            if req == "N" and not left and scenario.model.state.free_rows == 0 and "A" in waiting:
                scenario.lines.append(Expect(same_row={"N": "A"}))


def _come_again(scenario: Scenario, prompt: list[Any], session: str | None) -> None:
    """A comes by the same name: a retracted request by itself, a session with its next turn, or opened anew."""
    state = scenario.model.state
    if "A" in state.requests:
        return
    if session is not None and session not in state.sessions:
        scenario.do(OpenSession(session))
    if session is not None and len(state.sessions[session].history):
        prompt = [*state.sessions[session].history.elements(), 5, 6]
    scenario.do(Submit("A", prompt, session))


def _config(case: Case, pages: int, window_pages: int, states: int) -> Config:
    """A memory with one row for each of A and those beside it."""
    return Config(
        page_size=case.page_size,
        num_pages=pages,
        num_rows=1 + max(1, case.batch - 1),
        max_context_len=8 * case.page_size + 16,
        prefix_cache=case.pool != "uncached",
        sliding_window=case.page_size + 1 if case.pool == "window" else 0,
        num_window_pages=window_pages if case.pool == "window" else 0,
        num_states=states if case.pool == "states" else 0,
    )


_SOURCES = {"finish": "994", "retract": "22862", "abort": "22862", "close": "22213", "preempt": "20476"}
_RULES = ("RACE-1", "ROW-1", "ROW-2", "PAGE-1", "SESS-2", "SESS-4", "SESS-5", "TAIL-1", "SWA-1", "MAMBA-2", "SPEC-1")


def vectors() -> Iterator[tuple[str, bytes]]:
    """Each vector's file name and content."""
    for case in cases():
        roomy = _config(case, ROOMY, ROOMY, ROOMY)
        pages, window_pages, states = (ROOMY - free + SPARE for free in scenario_of(case, roomy).least_free)
        config = _config(case, pages, window_pages, states)
        scenario = scenario_of(case, config)
        header = Header(
            VERSION,
            "kvspec",
            config,
            description=case.description,
            rules=[rule for rule in _RULES if scenario.model.state.checked[rule]],
            source="17850" if case.in_flight else _SOURCES[case.way],
        )
        lines = [msgspec.json.encode(line) for line in (header, *scenario.lines)]
        yield f"{case.name}.jsonl", b"\n".join(lines) + b"\n"


def main(folder: Path = FOLDER / "ways-out") -> None:
    """Write them anew."""
    written = dict(vectors())
    for path in folder.glob("*.jsonl"):
        path.unlink()
    for name, content in written.items():
        (folder / name).write_bytes(content)


if __name__ == "__main__":
    main()
