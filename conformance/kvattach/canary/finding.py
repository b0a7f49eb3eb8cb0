"""A violation of the canary as a `Finding`, with the recorded memory events of its page if there are any."""

import os
from collections.abc import Mapping
from pathlib import Path

from kvattach import switch
from kvcheck import Malformed
from kvcheck.words import describe
from kvconform.errors import InputError
from kvconform.findings.finding import Finding, Place, Rule, Trace
from kvconform.findings.wording import origin
from kvconform.levels.drawing import builtins
from kvconform.levels.memory.rendering import Renderer, memory_in_words, named_in
from kvconform.traces.memory import MemoryReader, open_trace
from kvcuda.canary import Violation, ViolationKind
from kvspec.rules import MEMORY_RULES, rule_of

CODES = {
    ViolationKind.OTHER: "MEM-CONTENT/other",
    ViolationKind.LAST: "MEM-CONTENT/other",
    ViolationKind.KNOWN: "MEM-CONTENT/other",
    ViolationKind.NEVER: "MEM-WRITTEN/unwritten",
    ViolationKind.RANGE: "MEM-USE/no-page",
    ViolationKind.WRITES: "MEM-USE/no-page",
    ViolationKind.BYTES: "MEM-OVERWRITE/content",
}
"""The code of a finding of the canary."""


def recorded(environment: Mapping[str, str] = os.environ) -> Path | None:
    """The newest trace that a process of this engine is recording; `None` if there is none."""
    mode, _, rest = environment.get(switch.VARIABLE, "").partition(":")
    if mode != "record" or not rest:
        return None
    path = Path(rest)
    stem, dot, suffix = path.name.partition(".")
    files = [file for file in path.parent.glob(f"{stem}-*") if file.name.endswith(f"{dot}{suffix}")]
    return max(files, key=lambda file: file.stat().st_mtime, default=None)


def finding_of(violation: Violation, engine: str, page_size: int, trace: Path | None = None) -> Finding:
    """A violation as a finding.

    `page_size` is that of the violation's pool, in tokens. From a `trace` the finding takes all events that name the
    page, which show its earlier holders, and the memory checker's findings at these events, above all races.
    """
    page = violation.slot // page_size
    nothing = Trace("memory", {}, "", 0, [])
    note, shown, known = "", nothing, list[str]()
    if trace is not None:
        shown, known = _beside(trace, violation.pool, page)
        note = f"The events of page {page} in {trace}, up to now."
    code = CODES[violation.kind]
    rule = MEMORY_RULES[rule_of(code)]
    return Finding(
        kind="rule",
        what=str(violation),
        place=Place(f"{engine} as it runs", 0, violation.launch, "forward pass", site="canary"),
        trace=shown,
        note=note,
        rule=Rule(rule.id, rule.name, rule.statement, rule.reason, origin(rule)),
        code=code,
        expected=f"label {violation.expected & _WRAP:016x}",
        observed=f"label {violation.found & _WRAP:016x}",
        compared=violation.kind is not ViolationKind.BYTES,
        before=[] if violation.held is None else [f"slot {violation.slot}: {violation.held}"],
        known=known,
        count=violation.times,
    )


_WRAP = (1 << 64) - 1


def _beside(path: Path, pool: str, page: int) -> tuple[Trace, list[str]]:
    """The events of a recorded trace that name a page, and the findings about it. The last line may be cut off."""
    with open_trace(path) as trace:
        if not isinstance(trace, MemoryReader):
            return Trace("memory", {}, "", 0, []), []
        pools = trace.header.pools
        wanted = pool if pool in pools else next(iter(pools))
        renderer = Renderer(pools, lambda _, event, state, *__: (wanted, page) in set(named_in(event, state)))
        known = []
        try:
            for line, event in trace:
                found = [one for one in renderer.step(line, event) if (one.pool, one.page) == (wanted, page)]
                known += [f"{one.rule} at event {one.event}: {describe(one)}" for one in found]
        except (InputError, Malformed, EOFError):
            pass
        shown = renderer.trace()
        sizes, words = builtins(pools), memory_in_words(pools)
        return Trace("memory", sizes, words, shown.total, shown.moments, shown.undrawn), known
