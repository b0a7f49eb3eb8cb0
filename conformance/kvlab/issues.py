"""The known issues of an engine: the table `ENGINE/issues.toml`.

`Table`, `Issue`, `Symptom` and `Section` describe its fields. The matrix, the drivers, the tests and the pages of
`conformance/found` are made from it.
"""

import re
import tomllib
from collections import Counter
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import Any, Literal, TypeVar, get_type_hints

import msgspec

from kvcheck import Finding
from kvcheck.finding import Owners
from kvlab.releases import version_key

F = TypeVar("F")
W = TypeVar("W")

Level = Literal["requests", "memory"]


class Symptom(msgspec.Struct, forbid_unknown_fields=True, frozen=True, rename={"with_": "with"}):
    """One symptom of an issue of the request level. A field that is left out fits any finding."""

    rules: tuple[str, ...]
    operations: tuple[str, ...] = ()
    """The operation with the finding."""
    with_: tuple[str, ...] = ()
    """Operations in the shortest trace, each as often as listed."""
    parts: tuple[str, ...] = ()
    """Prefixes of the wrong part of the answer (`kvspec.rules.Violation`)."""
    raised: str = ""
    """A part of the engine's message, if it raised an exception."""
    pool: Literal["window", "states"] | None = None
    """The second pool that is required."""

    def fits(self, rule: str, operation: str, trace: Iterable[str], pool: str | None, part: str, raised: str) -> bool:
        """Whether a finding fits this symptom."""
        return (
            rule in self.rules
            and (not self.parts or part.startswith(self.parts))
            and self.raised in raised
            and (not self.operations or operation in self.operations)
            and self.pool in (None, pool)
            and not Counter(self.with_) - Counter(trace)
        )


class Issue(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A defect of an engine, or a place where the specification is stricter than the engine.

    Releases are versions, or commits of an engine that has none. The texts are Markdown.
    """

    id: str
    title: str
    level: Level
    when: tuple[Symptom, ...] = ()
    """At the request level: the symptoms."""
    rule: str = ""
    """At the memory level: the broken rule; empty: any, if a drive looks only for this issue."""
    code: str = ""
    """The code of the finding, if the rule is not enough."""
    where: dict[str, str] = {}
    """Detail of the finding -> a regular expression."""
    places: tuple[str, ...] = ()
    """Functions of the engine that queued one of the operations, or that raised the error; empty: any."""
    kind: Literal["engine", "specification"] = "engine"
    """Whether the engine is wrong, or deviates without harm."""
    since: str = ""
    """The first release that is known to have the issue."""
    fixed: str = ""
    """The first release without the issue; empty: the newest tried release has it."""
    pull: str = ""
    """The engine's pull request that fixes it."""
    seen: str = ""
    """The releases in which the issue was found."""
    events: str = ""
    """The number of events until the issue was found."""
    lines: tuple[str, ...] = ()
    """The engine's files and lines, below the package's folder; of release `since` unless another one is named."""
    description: str = ""
    effect: str = ""
    """The consequence for a user."""
    traces: tuple[str, ...] = ()
    """Files in `conformance/found/ENGINE`."""
    no_trace: str = ""
    """The reason why there is no trace."""
    workload: dict[str, Any] | None = None
    """Options of the driver that show the issue; `like` names an entry of `workloads` with the rest. Empty: any run."""
    fix: str = ""
    """The name of the patch in the engine's `fixes` that fixes the issue."""

    @property
    def specific(self) -> bool:
        """Whether a finding of any run can show the issue; a rule alone would also cover other issues."""
        return bool(self.code or self.where or self.places)

    def fits(self, finding: Finding) -> bool:
        """Whether a finding of the memory level shows this issue."""
        return (
            self.rule in ("", finding.rule)
            and self.code in ("", finding.code)
            and (not self.places or finding.at in self.places or finding.earlier in self.places)
            and all(re.search(pattern, _detail(finding, name)) for name, pattern in self.where.items())
        )

    def covers(self, release: str, repaired: frozenset[str] = frozenset()) -> bool:
        """Whether a release has the issue. A release without a number counts as the newest.

        `repaired`: pull requests that the release has.
        """
        if self.pull in repaired or (self.fixed and not is_before(release, self.fixed)):
            return False
        return not is_before(release, self.since)

    def fixed_in(self, release: str) -> bool:
        """Whether a release has the fix. A release without a number may have the issue."""
        return bool(self.fixed) and _numbered(release) and not is_before(release, self.fixed)


def is_before(release: str, other: str) -> bool:
    """Whether both releases have numbers, and the first is less than the second."""
    return _numbered(release) and _numbered(other) and version_key(release) < version_key(other)


def _numbered(release: str) -> bool:
    return release[:1].isdigit() and "." in release


def _detail(finding: Finding, name: str) -> str:
    value = getattr(finding, name)
    return ", ".join(value.holders) if isinstance(value, Owners) else "" if value is None else str(value)


class Section(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A part of an engine's page: a text, followed by a table of issues."""

    text: str
    columns: tuple[tuple[str, str], ...] = ()
    """Fields of an issue, each with its column's head."""
    issues: tuple[str, ...] = ()
    """The ids of the issues; empty: all of the level."""
    level: Level = "memory"


class Table(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """All known issues of an engine."""

    issues: tuple[Issue, ...] = ()
    workloads: dict[str, dict[str, Any]] = {}
    page: tuple[Section, ...] = ()

    def at(self, level: Level) -> list[Issue]:
        """The issues of one level, in the order in which findings are compared with them."""
        return [issue for issue in self.issues if issue.level == level]

    def workload(self, issue: Issue) -> dict[str, Any]:
        """The options that show an issue, including those of `like`."""
        return self._whole(issue.workload or {})

    def _whole(self, options: dict[str, Any]) -> dict[str, Any]:
        base = self._whole(self.workloads[options["like"]]) if "like" in options else {}
        return base | {name: value for name, value in options.items() if name != "like"}


def options_of(given: dict[str, Any], kind: type[W]) -> W:
    """The options of a workload, for a driver that takes those of `kind`.

    Raises:
        ValueError: an option is misspelt; msgspec ignores it.
    """
    if unknown := given.keys() - get_type_hints(kind).keys():
        raise ValueError(f"no option of a workload: {', '.join(sorted(unknown))}")
    return msgspec.convert(given, kind)


def remaining(fixes: Mapping[str, F], but: str, needed: Mapping[str, str]) -> list[F]:
    """The fixes of all issues except `but`, and except the one that is `needed` to show it."""
    return [fix for name, fix in fixes.items() if name not in (but, needed.get(but))]


def path_of(engine: str) -> Path:
    """The file with an engine's table."""
    return Path(__file__).parent / engine.replace("-", "_") / "issues.toml"


@cache
def issues_of(engine: str) -> Table:
    """The table of an engine; empty for one without known issues."""
    path = path_of(engine)
    return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Table) if path.exists() else Table()
