"""The report of a command as one object: its cases, each with a verdict, and its findings.

`kvspec schema --report` prints its JSON Schema, `--json` the object itself; `formats` writes it for other tools.
"""

from typing import Any, Literal

import msgspec

from kvconform.findings.finding import Finding
from kvspec import __version__

Verdict = Literal["conforms", "partly checked", "fails", "known", "not supported", "unusable"]
"""The verdict of a case. `partly checked`: no finding, but answers left out the fields that some of its rules need;
`known`: the baseline lists the findings; `unusable`: the input cannot be read."""


class Case(msgspec.Struct, omit_defaults=True):
    """A vector, a trace, or a release."""

    name: str
    verdict: Verdict
    file: str = ""
    """The path of the case, if it is a file."""
    level: Literal["request", "memory"] = "request"
    events: int = 0
    """The number of checked operations or memory events."""
    reason: str = ""
    """Why the case is not supported or unusable, or why it fails without a finding."""

    def __post_init__(self) -> None:
        """Set the level of a case from another process to the default object: only that is omitted."""
        self.level = "memory" if self.level == "memory" else "request"


class Report(msgspec.Struct, omit_defaults=True):
    """The outcome of a command."""

    command: Literal["run", "check", "fuzz", "show", "matrix"]
    subject: str
    """The subject of the check: an implementation, an engine, or the traces."""
    cases: list[Case] = []
    findings: list[Finding] = []
    """The findings, each only once."""
    checked: dict[str, int] = {}
    """Rule -> how often it was checked."""
    unchecked: dict[str, int] = {}
    """Rule -> how often it could not be checked, because fields were left out."""
    unreported: dict[str, list[str]] = {}
    """Rule that could not be checked -> the fields that were left out."""
    version: str = __version__
    """The version of kvspec."""

    @property
    def conforms(self) -> bool:
        """Whether all cases could be read and none fails. If every vector is only partly checked, that is a failure."""
        met = {case.verdict for case in self.cases if case.level == "request"} - {"not supported"}
        return met != {"partly checked"} and not any(case.verdict in ("fails", "unusable") for case in self.cases)


def schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a report."""
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **msgspec.json.schema(Report)}
