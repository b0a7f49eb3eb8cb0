"""The outcomes of an engine's own tests, without kvspec and with it, and whether they agree."""

from collections import Counter
from collections.abc import Sequence
from pathlib import Path

import msgspec

VARIABLE = "KVSPEC_OWN_TESTS"
"""The environment variable that names the file of results."""


class Outcome(msgspec.Struct):
    """One test in one run."""

    name: str
    outcome: str
    """passed, failed or skipped."""
    said: str = ""
    """The error that failed it, or why it was skipped."""
    events: int = 0
    found: list[str] = []
    """Findings, also those whose exception the engine or the test caught."""
    problems: list[str] = []
    """Why recording ended."""


class Listed(msgspec.Struct):
    """Tests that may differ, and why."""

    reason: str
    tests: list[str]
    """Their names, without parameters."""


class Suite(msgspec.Struct):
    """The tests of one engine that drive its memory."""

    tests: list[str]
    """Files and folders."""
    unreached: list[Listed] = []
    """Tests that put the engine into a state that no engine reaches."""
    known: list[Listed] = []
    """Tests that show known issues of the engine."""


def read_tests(path: Path) -> dict[str, Outcome]:
    """The tests of one run, by name. The last line of a test counts, unless an earlier one says that it failed."""
    tests = dict[str, Outcome]()
    for line in path.read_bytes().splitlines() if path.exists() else ():
        test = msgspec.json.decode(line, type=Outcome)
        if test.name not in tests or tests[test.name].outcome != "failed":
            tests[test.name] = test
    return tests


class Comparison:
    """A comparison of a run with kvspec and one without it."""

    def __init__(self, suite: Suite, without: dict[str, Outcome], beside: dict[str, Outcome]) -> None:
        """Compare the tests that pass without kvspec. The others show nothing about kvspec."""
        known = {name for one in suite.known for name in one.tests}
        listed = known | {name for one in suite.unreached for name in one.tests}
        self.without = Counter(test.outcome for test in without.values())
        self.events = sum(test.events for test in beside.values())
        self.driving = sum(test.events > 0 for test in beside.values())
        passed = [name for name, test in without.items() if test.outcome == "passed"]
        self.passed = 0
        """Tests that pass in both runs, without a finding."""
        self.unreached = 0
        """Tests that do not pass, and are listed for a state that no engine reaches."""
        self.known = 0
        """Tests that do not pass, and are listed for a known issue."""
        self.wrong: list[str] = []
        """A line for each test that differs and is not listed."""
        met = set[str]()
        for name in passed:
            line = _differs(name, beside.get(name))
            plain = name.partition("[")[0]
            if line is None:
                self.passed += 1
            elif plain in listed:
                self.known += plain in known
                self.unreached += plain not in known
                met.add(plain)
            else:
                self.wrong.append(line)
        self.stale = sorted(listed - met)
        """Listed tests that pass or no longer exist: they can leave the list."""

    def lines(self) -> Sequence[str]:
        """The report."""
        return [
            *self.wrong,
            *(f"{name}: listed, but it passes or no longer exists" for name in self.stale),
            f"Without kvspec {self.without['passed']:,} tests pass, {self.without['failed']:,} fail and "
            f"{self.without['skipped']:,} are skipped. With it {self.passed:,} of those that pass do so without a "
            f"finding; {self.driving:,} tests drove {self.events:,} events.",
            f"Listed for a state that no engine reaches: {self.unreached:,}; for a known issue: {self.known:,}. "
            f"Other differences between the runs: {len(self.wrong):,}.",
        ]


def _differs(name: str, test: Outcome | None) -> str | None:
    """The difference in a test that passes without kvspec; `None` if there is none."""
    if test is None:
        return f"{name}: it did not run"
    if test.problems:
        return f"{name}: recording ended: {test.problems[0]}"
    if test.found:
        return f"{name}: {test.found[0]}"
    return None if test.outcome == "passed" else f"{name}: {test.outcome}: {test.said}"
