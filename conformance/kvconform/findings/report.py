"""What was broken, told so that it can be understood without knowing kvspec."""

import json
import textwrap
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from rich.console import Console
from rich.text import Text

from kvconform.checked import ImplementationFailed, RuleBroken
from kvconform.findings.shrink import Shortest
from kvconform.findings.wording import origin, printable
from kvconform.traces.codec import with_pages
from kvconform.vectors.runner import Demonstration, ExpectationFailed, Finding, names_in
from kvspec.events import Config, HolderView, Operation, Snapshot, SnapshotAnswer, Submit
from kvspec.model import Model
from kvspec.pages import Runs, compress, count, expand

_LONG = 16
"""Elements of a list that are written out; of a longer one the beginning and the end are."""

_LISTED = 200
"""Operations of a demonstration that are printed at most: the last ones."""


class Place(NamedTuple):
    """Where something was found."""

    path: Path
    line: int

    def __str__(self) -> str:
        return f"{self.path}:{self.line}"


def show_finding(
    console: Console, place: Place, finding: Finding, config: Config, shortest: Shortest, count: int = 1
) -> None:
    """Print one finding: the rule, the place, expected against observed, and the shortest way to show it.

    `count` is how often it was met.
    """
    often = "" if count == 1 else f", {count:,} times"
    console.print(_headline(place, finding).append(often, "bold"), soft_wrap=True)
    for name, text in _facts(finding, config, shortest.demonstration):
        console.print(Text(_indented(name, printable(text), console.width)), soft_wrap=True)
    console.print()
    console.print(Text(shortest.note), soft_wrap=True)
    if shortest.demonstration is not None:
        _show_operations(console, shortest.demonstration)
    console.print()


def _indented(name: str, text: str, width: int) -> str:
    return textwrap.fill(
        text,
        max(width, 60),
        initial_indent=f"  {name:<11}",
        subsequent_indent=" " * 13,
        break_long_words=False,
        break_on_hyphens=False,
    )


def _headline(place: Place, finding: Finding) -> Text:
    match finding:
        case RuleBroken():
            what = f"{finding.rule.id} is broken"
        case ImplementationFailed():
            what = "The implementation failed"
        case _:
            what = "Not what the vector expects"
    during = f"step {finding.step}: {_tag(finding.op)}" if finding.op is not None else "while it was made"
    return Text.assemble((what, "bold red"), (printable(f" at {place}, {during}"), "bold"))


def _facts(finding: Finding, config: Config, shortest: Demonstration | None) -> Iterable[tuple[str, str]]:
    if isinstance(finding, RuleBroken):
        yield "rule", finding.rule.statement
        yield "why", finding.rule.reason
        yield "origin", origin(finding.rule)
    sizes = ((name, getattr(config, name)) for name in config.__struct_fields__)
    yield "sizes", ", ".join(f"{name} {size}" for name, size in sizes if size != 0 or name == "prefix_cache")
    if finding.op is not None:
        yield "operation", _operation(finding.op)
        yield "answer", _answer(finding.op)
    match finding:
        case RuleBroken():
            yield "finding", finding.what
            yield from _comparison(finding.expected, finding.observed)
        case ExpectationFailed():
            yield "compared", finding.mismatch.what
            yield from _comparison(finding.mismatch.expected, finding.mismatch.observed)
        case ImplementationFailed():
            yield "raised", str(finding)
            frames = traceback.extract_tb(finding.original.__traceback__)
            own = str(Path(__file__).parents[1])
            for frame in [frame for frame in frames if not frame.filename.startswith(own)][-5:]:
                yield "at", f"{frame.filename}:{frame.lineno} in {frame.name}: {frame.line}"
    if shortest is not None:
        for holder in _holders_before(shortest, config):
            yield "before", holder


def _comparison(expected: object, observed: object) -> Iterable[tuple[str, str]]:
    if expected is not None or observed is not None:
        yield "expected", _value(expected)
        yield "observed", _value(observed)


def _holders_before(shown: Demonstration, config: Config) -> Iterable[str]:
    """What those that the last operation names held just before it; all holders if it names none."""
    model, sessions = Model(config), dict[str, str]()
    for op in shown.operations[:-1]:
        model.step(op)  # type: ignore[arg-type]
        if isinstance(op, Submit) and op.session is not None:
            sessions[op.req] = op.session
    look = Snapshot()
    model.step(look)
    state = look.obs or SnapshotAnswer()
    named = names_in(shown.operations[-1])
    wanted = {*named, *(sessions[name] for name in named if name in sessions)}
    for kind, holders in (("request", state.requests or {}), ("session", state.sessions or {})):
        for name, view in holders.items():
            if name in wanted or not named:
                yield _holder(f"{kind} {name}", view, state, config)


def _holder(name: str, view: HolderView, state: SnapshotAnswer, config: Config) -> str:
    slots = expand((state.rows or {}).get(view.row, ()))
    pages = dict.fromkeys(slot // config.page_size for slot in slots)
    # The model invents numbers, which are not positive, for what the implementation did not tell.
    told = _spans(pages) if all(page > 0 for page in pages) else "not told"
    row = view.row if view.row >= 0 else "not told"
    return (
        f"{name}: protected {view.protected_len}, committed {view.committed_len}, allocated {view.allocated_len}, "
        f"row {row}, pages {told}"
    )


def _spans(numbers: Iterable[int]) -> str:
    spans = (run if isinstance(run, int) else f"{run[0]}..{run[0] + run[1] - 1}" for run in compress(numbers))
    return ", ".join(map(str, spans)) or "none"


def _show_operations(console: Console, shown: Demonstration) -> None:
    total = len(shown.operations)
    width = len(str(total))
    first = max(0, total - _LISTED)
    if first:
        console.print(f"  ... {first:,} operations before these ...")
    for step, op in enumerate(shown.operations[first:], start=first + 1):
        line = f"  {step:>{width}}  {_operation(op)}  ->  {_answer(op)}"
        console.print(Text(line, style="bold red" if step == total else ""), soft_wrap=True)


def _tag(op: Operation[Any]) -> str:
    return str(op.__struct_config__.tag)


def _operation(op: Operation[Any]) -> str:
    return _value(msgspec.structs.replace(op, obs=None, refused=None))


def _answer(op: Operation[Any]) -> str:
    if op.refused is not None:
        return printable(f"refused by {op.refused.rule or 'no rule named'}: {op.refused.reason or 'no reason given'}")
    return "none" if op.obs is None else _value(with_pages(op, _few_written_out).obs)


def _few_written_out(runs: Runs) -> Runs:
    """Numbers one by one where they are few; else the runs as they were told, which may be as long as they like."""
    return expand(runs) if count(runs) <= 10 * _LONG else runs


def _value(value: object) -> str:
    """A value as JSON, long lists shortened; what is no JSON as Python writes it."""
    if isinstance(value, str):
        return printable(value)
    return json.dumps(_short(msgspec.to_builtins(value, str_keys=True, enc_hook=repr)), ensure_ascii=False)


def _short(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _short(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        items = [_short(item) for item in value]
        return items if len(items) <= _LONG else [*items[:6], f"... {len(items) - 8} more ...", *items[-2:]]
    return value
