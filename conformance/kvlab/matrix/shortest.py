"""The shortest part of a run that shows a finding, written as a trace."""

import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

import msgspec

from kvcheck import Checker, Finding
from kvconform.findings.baseline import Baseline
from kvconform.levels.memory.grouping import Grouping
from kvconform.levels.memory.minimise import shortest_cuts
from kvlab.matrix.report import Group as Reported
from kvspec.memory.events import MemoryEvent, Pool
from kvspec.rules import rule_of
from kvtrace.header import VERSION, MemoryHeader

SECONDS = 60.0
"""The most seconds, on a slow machine, for one finding."""


def write_shortest(
    folder: Path,
    producer: str,
    pools: Mapping[str, Pool],
    recorded: Sequence[MemoryEvent],
    found: Sequence[tuple[Reported, Finding]],
) -> None:
    """Write the shortest part of a run that shows each of these findings, or all up to it, and note the file."""
    grouping = Grouping(Checker(pools), Baseline([]))
    for line, event in enumerate(recorded, start=2):
        grouping.step(line, event)
    groups = {(group.finding.event, group.finding.code): group for group in grouping.outcome().groups}
    header = MemoryHeader(VERSION, "memory", producer, dict(pools))
    folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as scratch:
        whole = Path(scratch) / "whole.jsonl"
        _write(whole, header, recorded)
        for group, finding in found:
            shown = groups.get((finding.event, finding.code))
            cut = None if shown is None else shortest_cuts(whole, [shown], grouping.identities, SECONDS)[0]
            events = recorded[: finding.event] if cut is None else [step.event for step in cut.steps]
            path = folder / f"{rule_of(group.code)}-{len(list(folder.iterdir())) + 1}.jsonl"
            _write(path, header, events)
            group.file = str(path)


def _write(path: Path, header: MemoryHeader, events: Sequence[MemoryEvent]) -> None:
    encoder = msgspec.json.Encoder()
    path.write_bytes(b"\n".join([encoder.encode(header), *(encoder.encode(event) for event in events), b""]))
