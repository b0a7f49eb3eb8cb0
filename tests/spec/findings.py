"""The oracle's verdicts on right and wrong answers, written down in `verdicts`, a file for each operation.

    python -m tests.spec.findings            # writes the files anew, from the root of the repository
    python -m tests.spec.findings NAME       # prints everything that is tried in one vector or walk

Every embedded vector and a few random walks are carried out on the model. On the way, in each state, copies of the
model check the right answer changed in every way of `tries`, and now and then operations of every kind are tried.
A file shows each *kind* of verdict once, by its first example, with the changes that lead to it. All verdicts of a
vector are summed up in a digest in `sources.txt`, so that nothing changes unseen.
"""

import hashlib
import re
import sys
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from functools import cache
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from msgspec.structs import asdict, fields, replace

from kvconform.fuzzing.swarm import memory
from kvconform.oracle import Model
from kvconform.protocol import ANSWERS
from kvconform.traces.codec import read_vector
from kvconform.vectors.files import vector_file, vector_files
from kvspec import events
from kvspec.events import Answer, Operation, Refusal, Refused
from kvspec.model.state import State
from kvspec.rules import Violation
from tests.spec import tries
from tests.walk import RandomDraw, proposals

FOLDER = Path(__file__).with_name("verdicts")
SOURCES = "sources"
"""The file with a line for each vector and walk; the others are named after operations."""
WALKS = 18
STEPS = 40
"""Operations of a walk."""
STRIDE = 9
"""At every so manieth step operations of every kind are tried, and looks at the whole state."""

INFORMATIVE = (
    "close_idle",
    "state_taken_early_goes_with_the_row",
    "swa_last_token_released",
    "abort_before_match",
    "state_chunk_cache",
    "swa_window_lock_reaches_the_window",
    "state_resumes_at_a_page_border",
    "state_abort_wipes_the_session",
    "swa_release_around_the_cursor",
    "state_duplicate_stays_with_its_holder",
    "decode_up_to_page_border",
    "row_withheld_after_retract",
    "state_capacity_miss",
    "overshoot_plain",
    "swa_idle_session_holds_locks",
    "close_in_flight",
    "swa_tombstone_revived",
    "swa_tombstone_is_not_matched",
    "swa_revival_of_a_locked_tombstone",
    "state_eviction_stops_at_locks",
)
"""Vectors that show most of all kinds between them. They come first, so that what is wrong shows soon."""

ON_THE_WAY = "on the way"
UNANSWERED = "unanswered"


class Source(NamedTuple):
    """Where operations come from."""

    name: str
    model: Model
    operations: Iterator[Operation[Any]]
    """Each is made when the one before it has been carried out on the model."""
    blind: int = 0
    """1 where the implementation observes as little as it may, 2 where it does so at every second step."""


class Outcome(NamedTuple):
    """The model's verdict on one operation with one answer."""

    op: str
    """The operation and its arguments."""
    change: str
    """The change of the right answer."""
    verdict: str
    state: str
    """The state that it leads to and what was counted, all of it; a finding leads to none."""
    answer: Answer | None
    """The model's answer, where the operation has none."""
    raised: Violation | Refusal | None
    counted: dict[tuple[str, str], int]
    """The counts of this step: counter and name -> how often."""
    reported: Answer | None = None
    """The answer reported in place of the right one."""
    right: Answer | None = None

    @property
    def sort(self) -> str:
        """The sort of verdict."""
        start = self.verdict.split(":")[0]
        return {"answer": "answers", "allowed": "allowed", "must be refused": "refusals"}.get(start, "findings")

    def __str__(self) -> str:
        """All but the state."""
        return f"{self.op}, {self.change}\n    {self.verdict}"


LONGEST = "swa_side_beside_seventy_evicted"
"""A vector of 153 operations that takes as long as a hundred others; its answers are of the same kinds."""


def first() -> list[str]:
    """The sources that show most kinds: the informative vectors and all walks."""
    return [name for name in names() if name in INFORMATIVE or name.startswith("walk ")]


def names() -> list[str]:
    """The vectors, the informative and the short ones first, so that examples are small; then walks."""
    # Vectors of ways out are many and similar; walks meet the same.
    paths = sorted((path for path in vector_files() if path.parent.name != "ways-out"), key=_rank)
    # Vectors for large pages differ from those for small ones in numbers alone.
    vectors = [path.stem for path in paths if not re.search(r"_p(16|64)$", path.stem) and path.stem != LONGEST]
    return [*vectors, *(f"walk {seed}{('', ', blind', ', half blind')[seed % 3]}" for seed in range(WALKS))]


def _rank(path: Path) -> tuple[int, int, str]:
    reporting = INFORMATIVE.index(path.stem) if path.stem in INFORMATIVE else len(INFORMATIVE)
    return reporting, path.stat().st_size, path.name


def source(name: str) -> Source:
    """The vector or the walk of that name, from its start."""
    if not name.startswith("walk "):
        vector = read_vector(vector_file(name))
        renames = _Names()
        return Source(name, Model(vector.header.config), (renames.renamed(step.op) for step in vector.steps))
    seed = int(name.removeprefix("walk ").split(",")[0])
    draw = RandomDraw(seed)
    model = Model(memory(draw))
    return Source(name, model, proposals(model.state, draw, STEPS), blind=seed % 3)


BEFORE = 5
"""How often everything has been counted before a step: what is counted in it is seen to be added."""
COUNTERS = ("checked", "unchecked", "reached", "chosen")


class _Names:
    """Calls the requests of a vector r1, r2, ... and its sessions s1, s2, ..., so that findings look the same."""

    def __init__(self) -> None:
        self._new: dict[str, dict[str, str]] = {"r": {}, "s": {}}

    def renamed(self, op: Operation[Any]) -> Operation[Any]:
        plain = msgspec.to_builtins(op)
        for name, value in plain.items():
            if name == "session" and value is not None:
                plain[name] = self._name("s", value)
            elif name == "req":
                plain[name] = self._name("r", value)
            elif name == "reqs":
                plain[name] = [
                    self._name("r", one) if isinstance(one, str) else [self._name("r", one[0]), one[1]] for one in value
                ]
            elif name == "tokens" and isinstance(value, dict):
                plain[name] = {self._name("r", req): token for req, token in value.items()}
        renamed: Operation[Any] = msgspec.convert(plain, type(op))
        return renamed

    def _name(self, kind: str, old: str) -> str:
        return self._new[kind].setdefault(old, f"{kind}{len(self._new[kind]) + 1}")


def outcomes(source: Source) -> Iterator[Outcome]:
    """Everything that is tried on the way through `source`, and the way itself."""
    model = source.model
    for step, op in enumerate(source.operations):
        yield from _tried(model, op)
        if step % STRIDE == STRIDE - 1:
            yield from _tried(model, events.Report())
            yield from _tried(model, events.Snapshot())
            for attempt in tries.operations(model.state):
                yield from _tried(model, attempt, only_refused=True)
        unseen = source.blind and step % source.blind == 0 and not isinstance(op, events.Evict)
        reported: Answer | None = ANSWERS[type(op)]() if unseen else None
        yield _check(model, replace(op, obs=reported), ON_THE_WAY)


def _tried(model: Model, op: Operation[Any], *, only_refused: bool = False) -> Iterator[Outcome]:
    """`op` with the right answer and with all wrong ones, each on a copy."""
    right: Any = replace(op, obs=None, refused=None)
    unanswered = _check(_copied(model), right, UNANSWERED)  # which fills the right answer in
    yield unanswered
    if isinstance(unanswered.raised, Refusal):
        due = unanswered.raised.refused
        nothing: Answer = events.EvictAnswer([]) if isinstance(op, events.Evict) else ANSWERS[type(op)]()
        yield _check(_copied(model), replace(right, obs=nothing), "carried out")
        for change, refused in tries.refusals(due):
            yield _check(_copied(model), replace(right, refused=refused), f"refused, {change}")
    elif not only_refused:
        for change, answer in tries.answers(model.state, right):
            outcome = _check(_copied(model), replace(right, obs=answer), change)
            yield outcome._replace(reported=answer, right=right.obs)
        for change, undue in tries.UNDUE.items():
            yield _check(_copied(model), replace(right, obs=None, refused=undue), change)


def _check(model: Model, op: Any, change: str) -> Outcome:
    """Let `model` take a step."""
    raised: Violation | Refusal | None = None
    counters = {name: defaultdict[str, int](lambda: BEFORE) for name in COUNTERS}
    vars(model.state).update(counters)
    answered = op.obs is not None or op.refused is not None
    try:
        model.step(op)
    except Refusal as refusal:
        raised = refusal
        verdict = f"must be refused: {_shown(refusal.refused)}"
    except Violation as violation:
        raised = violation
        verdict = f"{violation} (expected {violation.expected!r}, observed {violation.observed!r})"
    else:
        verdict = "allowed" if answered else f"answer: {_shown(op.obs)}"
    counted = {
        (counter, name): times - BEFORE
        for counter, tally in counters.items()
        for name, times in sorted(tally.items())
        if times != BEFORE
    }
    state = "" if isinstance(raised, Violation) else f"{model.steps}, {counted}, {_everything(model.state)}"
    return Outcome(_written(op), change, verdict, state, None if answered or raised else op.obs, raised, counted)


def _copied(model: Model) -> Model:
    other = Model.__new__(Model)
    other.state, other.steps = model.state.copy(), 0
    return other


def _everything(state: State) -> str:
    """Everything that a state holds, in words that do not depend on the order of sets or of fields."""
    left_out = {"config", "memory", "unreported", *COUNTERS}
    plain = {name: value for name, value in sorted(vars(state).items()) if name not in left_out}
    plain |= {name: sorted(value) for name, value in plain.items() if isinstance(value, set)}
    plain["store"] = [getattr(state.store, name) for name in sorted(state.store.__slots__)]
    plain["requests"] = {req: (request.tokens.elements(), *request[1:]) for req, request in state.requests.items()}
    plain["sessions"] = {name: (session.history.elements(), *session[1:]) for name, session in state.sessions.items()}
    return str(plain)


def _written(op: Operation[Any]) -> str:
    arguments = [value for name, value in asdict(op).items() if name not in ("obs", "refused")]
    written = [
        f"{len(value)} tokens" if isinstance(value, list) and len(value) > 9 else repr(value) for value in arguments
    ]
    return f"{op.__struct_config__.tag}({', '.join(written)})"


def _shown(part: Answer | Refused) -> str:
    """All reported values; an empty list is one, `None` is not."""
    reported = [(field.name, getattr(part, field.name), field.default) for field in fields(part)]
    return ", ".join(f"{name} {value!r}" for name, value, default in reported if value != default)


def summary(source: Source, seen: Callable[[Outcome], object] = lambda outcome: None) -> str:
    """All outcomes of `source` in a line; `seen` is given each."""
    kinds: Counter[str] = Counter()
    digest = hashlib.blake2b(digest_size=8)
    for outcome in outcomes(source):
        seen(outcome)
        kinds[outcome.sort] += 1
        digest.update("\n".join(outcome[:4]).encode())
    counted = ", ".join(f"{kinds[kind]} {kind}" for kind in ("answers", "allowed", "refusals", "findings"))
    return f"{source.name}: {counted}; {digest.hexdigest()}"


class Kinds:
    """The kinds of verdicts: the same words, whatever the numbers and names."""

    def __init__(self) -> None:
        """Nothing seen yet."""
        self._kinds: dict[str, dict[tuple[str, str], tuple[str, dict[str, None]]]] = {}
        """Operation -> verdict without numbers, and its sort -> its first example, and the changes that led to it."""

    def add(self, outcome: Outcome) -> None:
        """Take an outcome in."""
        if outcome.change in (ON_THE_WAY, UNANSWERED) and "short" not in outcome.verdict:
            return  # why it must be refused stands in the finding for who carries it out
        kinds = self._kinds.setdefault(outcome.op.split("(")[0], {})
        _, changes = kinds.setdefault(
            (outcome.sort, _plain(outcome.verdict)), (f"{outcome.verdict}\n    {outcome.op}", {})
        )
        changes.setdefault(_plain(outcome.change))

    def texts(self) -> dict[str, str]:
        """The text of each operation's file, by its name."""
        return {tag: "\n".join(_paragraphs(kinds)) for tag, kinds in self._kinds.items()}


def _paragraphs(kinds: dict[tuple[str, str], tuple[str, dict[str, None]]]) -> Iterator[str]:
    for _, (example, changes) in sorted(kinds.items()):
        yield "\n".join([example, *(f"    - {change}" for change in changes), ""])


@cache
def _plain(text: str) -> str:
    """`text` without numbers, and without lengths of lists."""
    text = re.sub(r"b'[^']*'|b\"[^\"]*\"", "#", text)
    text = re.sub(r"\b[rs]\d+\b|\bstranger\b|\bnowhere\b", "#", text)
    text = re.sub(r"(?<![A-Z]-)(?<!\w)-?\d+", "#", text)
    text = re.sub(r"\(#, #\)", "#", text)
    text = re.sub(r"#(, #)+", "#", text)
    text = re.sub(r"\{[^{}]*\}", "{#}", text)
    return text.replace("[]", "[#]")


def texts(kinds: Kinds, lines: list[str]) -> dict[str, str]:
    """The files, by their names."""
    return kinds.texts() | {SOURCES: "\n".join(lines) + "\n"}


def written() -> dict[str, str]:
    """The committed files."""
    return {path.stem: path.read_text() for path in FOLDER.glob("*.txt")}


def golden() -> dict[str, str]:
    """The committed line of each source, by its name."""
    return {line.split(":")[0]: line for line in written()[SOURCES].splitlines()}


def main(chosen: list[str]) -> None:
    """Write the files, or print what is tried in some sources."""
    if chosen:
        for name in chosen:
            print(*outcomes(source(name)), sep="\n")
        return
    kinds = Kinds()
    lines = [summary(source(name), kinds.add) for name in names()]
    for path in FOLDER.glob("*.txt"):
        path.unlink()
    for name, text in texts(kinds, lines).items():
        (FOLDER / f"{name}.txt").write_text(text)


if __name__ == "__main__":
    main(sys.argv[1:])
