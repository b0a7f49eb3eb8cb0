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
    """One way in which an issue of the request level shows. A field that is left out fits any finding."""

    rules: tuple[str, ...]
    operations: tuple[str, ...] = ()
    """The operation with the finding."""
    with_: tuple[str, ...] = ()
    """Operations of the shortest trace, each as often as it is listed."""
    parts: tuple[str, ...] = ()
    """Beginnings of the part of the answer that is wrong (`kvspec.rules.Violation`)."""
    raised: str = ""
    """A part of the engine's own words, where it raised an exception."""
    pool: Literal["window", "states"] | None = None
    """The second pool that there must be."""

    def fits(self, rule: str, operation: str, trace: Iterable[str], pool: str | None, part: str, raised: str) -> bool:
        """Whether a finding shows it."""
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
    """Of the request level: how it shows."""
    rule: str = ""
    """Of the memory level: the rule that it breaks; empty: any, where it is looked for alone."""
    code: str = ""
    """The code of the finding, where the rule is not enough."""
    where: dict[str, str] = {}
    """Details of the finding: a regular expression for each."""
    places: tuple[str, ...] = ()
    """Functions of the engine that queued one of the operations, or that raised the error; none: any."""
    kind: Literal["engine", "specification"] = "engine"
    """Whether the engine is wrong, or does otherwise without harm."""
    since: str = ""
    """The first release that is known to have it."""
    fixed: str = ""
    """The first release without it; empty: the newest that was tried has it."""
    pull: str = ""
    """The engine's pull request that fixes it."""
    seen: str = ""
    """The releases that were found to have it."""
    events: str = ""
    """The number of events until it was found."""
    lines: tuple[str, ...] = ()
    """The engine's files and lines: in release `since` if no other one is named, below the package's folder."""
    description: str = ""
    effect: str = ""
    """The consequence for a user."""
    traces: tuple[str, ...] = ()
    """Files in `conformance/found/ENGINE`."""
    no_trace: str = ""
    """The reason why there is no trace."""
    workload: dict[str, Any] | None = None
    """Options of the driver that bring it out; `like` names an entry of `workloads` with the others. Empty: any run."""
    fix: str = ""
    """The name of the patch in the engine's `fixes` that takes it away."""

    @property
    def specific(self) -> bool:
        """Whether a finding of any run shows it; a rule alone would cover other issues that break it."""
        return bool(self.code or self.where or self.places)

    def fits(self, finding: Finding) -> bool:
        """Whether a finding of the memory level shows it."""
        return (
            self.rule in ("", finding.rule)
            and self.code in ("", finding.code)
            and (not self.places or finding.at in self.places or finding.earlier in self.places)
            and all(re.search(pattern, _detail(finding, name)) for name, pattern in self.where.items())
        )

    def covers(self, release: str, repaired: frozenset[str] = frozenset()) -> bool:
        """Whether a release has it. One without a number counts as the newest.

        `repaired`: pull requests that the release has.
        """
        if self.pull in repaired or (self.fixed and not is_before(release, self.fixed)):
            return False
        return not is_before(release, self.since)

    def fixed_in(self, release: str) -> bool:
        """Whether a release has the fix. One without a number may have the issue."""
        return bool(self.fixed) and _numbered(release) and not is_before(release, self.fixed)


def is_before(release: str, other: str) -> bool:
    """Whether both have numbers, and one is less than the other."""
    return _numbered(release) and _numbered(other) and version_key(release) < version_key(other)


def _numbered(release: str) -> bool:
    return release[:1].isdigit() and "." in release


def _detail(finding: Finding, name: str) -> str:
    value = getattr(finding, name)
    return ", ".join(value.holders) if isinstance(value, Owners) else "" if value is None else str(value)


class Section(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A part of an engine's page: text, and below it a table of issues."""

    text: str
    columns: tuple[tuple[str, str], ...] = ()
    """Fields of an issue, each with the head of its column."""
    issues: tuple[str, ...] = ()
    """Empty: all of the level."""
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
        """The options that bring an issue out, those of `like` included."""
        return self._whole(issue.workload or {})

    def _whole(self, options: dict[str, Any]) -> dict[str, Any]:
        base = self._whole(self.workloads[options["like"]]) if "like" in options else {}
        return base | {name: value for name, value in options.items() if name != "like"}


def options_of(given: dict[str, Any], kind: type[W]) -> W:
    """The options of a workload, for a driver that takes those of `kind`.

    Raises:
        ValueError: one is misspelt; msgspec leaves it out.
    """
    if unknown := given.keys() - get_type_hints(kind).keys():
        raise ValueError(f"no option of a workload: {', '.join(sorted(unknown))}")
    return msgspec.convert(given, kind)


def remaining(fixes: Mapping[str, F], but: str, needed: Mapping[str, str]) -> list[F]:
    """The fixes of all issues but one, and but the one that is `needed` for it to show."""
    return [fix for name, fix in fixes.items() if name not in (but, needed.get(but))]


def path_of(engine: str) -> Path:
    """The file with an engine's table."""
    return Path(__file__).parent / engine.replace("-", "_") / "issues.toml"


@cache
def issues_of(engine: str) -> Table:
    """The table of an engine; empty for one without known issues."""
    path = path_of(engine)
    return msgspec.convert(tomllib.loads(path.read_text(encoding="utf-8")), Table) if path.exists() else Table()
