"""What came out of a command, as one object: what was judged, case by case, and what was found.

`kvspec schema --report` prints its JSON Schema, `--json` the object itself; `formats` writes it for other tools.
"""

from typing import Any, Literal

import msgspec

from kvconform.findings.finding import Finding
from kvspec import __version__

Verdict = Literal["conforms", "partly checked", "fails", "known", "not supported", "unusable"]
"""Of a case. `partly checked`: nothing is wrong, but of some rules that the case is about answers told too little;
`known`: the baseline lists what was found; `unusable`: the input cannot be read."""


class Case(msgspec.Struct, omit_defaults=True):
    """A vector, a trace, or a release."""

    name: str
    verdict: Verdict
    file: str = ""
    """Where it stands, if it is a file."""
    level: Literal["request", "memory"] = "request"
    events: int = 0
    """Operations or memory events that were judged."""
    reason: str = ""
    """Why it is not supported, or not usable; what it fails in, if no finding tells; what is known of it."""

    def __post_init__(self) -> None:
        """Make the level the very default again in a case that came from another process: only then it is left out."""
        self.level = "memory" if self.level == "memory" else "request"


class Report(msgspec.Struct, omit_defaults=True):
    """All that came out of a command."""

    command: Literal["run", "check", "fuzz", "show", "matrix"]
    subject: str
    """What was checked: an implementation, an engine, or whatever wrote the traces."""
    cases: list[Case] = []
    findings: list[Finding] = []
    """What does not conform, each thing once."""
    checked: dict[str, int] = {}
    """Rule -> how often it was judged."""
    unchecked: dict[str, int] = {}
    """Rule -> how often too little was told to judge by it."""
    unreported: dict[str, list[str]] = {}
    """Such a rule -> the fields that were left out."""
    version: str = __version__
    """Of kvspec."""

    @property
    def conforms(self) -> bool:
        """Whether no case fails, and all could be read; who tells so little that no vector is judged does not."""
        met = {case.verdict for case in self.cases if case.level == "request"} - {"not supported"}
        return met != {"partly checked"} and not any(case.verdict in ("fails", "unusable") for case in self.cases)


def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a report."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(Report)}
