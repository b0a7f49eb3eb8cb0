"""`kvspec run --report-card`: all checks of an implementation on one page, as Markdown or JSON."""

from collections import Counter
from pathlib import Path

import msgspec

from kvconform.features import FEATURES, lacks
from kvconform.findings.baseline import Baseline
from kvconform.findings.outcome import Report
from kvconform.findings.wording import printable
from kvconform.fuzzing.fuzz import Budget, fuzz_on, runs
from kvconform.node import NodeFactory
from kvconform.vectors.runner import Factory
from kvtrace.header import VERSION

OPERATIONS, SEED = 20_000, 0
"""The number of random operations of a card, and their seed."""

VERDICTS = {
    "passed": "conforms",
    "passed in part": "partly checked",
    "failed": "fails",
    "known": "known",
    "skipped": "not supported",
}
"""The columns of a card, and the verdicts of cases."""


class Card(msgspec.Struct):
    """The card of one implementation."""

    implementation: str
    name: str
    """The name and version that a node reports; for any other implementation the same as `implementation`."""
    kvspec: str
    """The version of the specification."""
    format: int
    """The version of the trace format."""
    unsupported: dict[str, str]
    """Features that it lacks, with an explanation."""
    chapters: dict[str, dict[str, int]]
    """Chapter -> the number of its vectors that passed, failed and so on."""
    skipped: dict[str, int]
    """Reason -> the number of skipped vectors."""
    failed: dict[str, str]
    """Failed vector -> its finding, if the report has one."""
    fuzzed: int
    """The number of random operations that were carried out."""
    seed: int
    broken: list[str]
    """Kinds of findings in random operations."""


def make_card(report: Report, factory: Factory, baseline: Baseline) -> Card:
    """The card of an implementation after its vectors have run. Random operations run here."""
    hello = factory.hello if isinstance(factory, NodeFactory) else None
    budget = Budget(operations=OPERATIONS)
    fuzzed = fuzz_on(runs(factory, budget, SEED), budget, lambda *_: None, baseline)
    cases = [case for case in report.cases if case.level == "request"]
    chapters: dict[str, Counter[str]] = {}
    for case in cases:
        chapters.setdefault(Path(case.file).parent.name, Counter())[case.verdict] += 1
    found = {finding.place.file: finding.what for finding in report.findings}
    return Card(
        report.subject,
        f"{hello.name} {hello.version}".strip() if hello else report.subject,
        report.version,
        VERSION,
        {feature: FEATURES[feature] for feature in sorted(lacks(factory))},
        {chapter: {name: verdicts[key] for name, key in VERDICTS.items()} for chapter, verdicts in chapters.items()},
        dict(Counter(case.reason for case in cases if case.verdict == "not supported").most_common()),
        {case.name: found.get(case.file, "") for case in cases if case.verdict == "fails"},
        fuzzed.tally.steps,
        SEED,
        [str(kind.failure.finding) for kind in fuzzed.kinds],
    )


def write_card(card: Card, path: Path) -> None:
    """Write a card: as JSON if the file's name ends so, otherwise as Markdown.

    Raises:
        OSError: the file cannot be written.
    """
    if path.suffix == ".json":
        path.write_bytes(msgspec.json.format(msgspec.json.encode(card), indent=2) + b"\n")
    else:
        path.write_text(as_markdown(card), encoding="utf-8")


def as_markdown(card: Card) -> str:
    """A card as Markdown."""
    total = Counter[str]()
    for counts in card.chapters.values():
        total.update(counts)
    rows = [[chapter, *map(str, counts.values())] for chapter, counts in card.chapters.items()]
    verdict = f"{len(card.broken)} kinds of findings" if card.broken else "no rule was broken"
    parts = [
        f"# Report card: {_cell(card.name)}",
        f"`{_cell(card.implementation)}`, checked by kvspec {card.kvspec}, trace format {card.format}.",
        _table(["chapter", *VERDICTS], [*rows, ["all", *(str(total[name]) for name in VERDICTS)]]),
        f"{card.fuzzed:,} random operations (seed {card.seed}): {verdict}.",
    ]
    lists = {
        "Broken in random operations": card.broken,
        "Failed": [f"{name}: {what}" if what else name for name, what in card.failed.items()],
        "Skipped": [f"{count}: {reason}" for reason, count in card.skipped.items()],
        "Not supported": list(card.unsupported.values()),
    }
    for title, lines in lists.items():
        if lines:
            parts += [f"## {title}", "\n".join(f"- {_cell(line)}" for line in lines)]
    return "\n\n".join(parts) + "\n"


def _table(names: list[str], rows: list[list[str]]) -> str:
    lines = [names, ["---"] * len(names), *rows]
    return "\n".join(f"| {' | '.join(map(_cell, line))} |" for line in lines)


def _cell(text: str) -> str:
    return " ".join(printable(text).split()).replace("|", "\\|")
