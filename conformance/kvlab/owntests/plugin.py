"""A pytest plugin for the process that runs an engine's own tests. It writes the outcome of each as a line of a file.

`KVSPEC_OWN_TESTS` names the file. A finding counts for the test in which it is made, even if the test or the engine
catches the error. Recording begins anew with each test, regardless of what the previous test did to the hooks.
"""

import gc
import os
from pathlib import Path
from typing import Any

import msgspec
import pytest

from kvattach.hooks import Hooks, RuleBroken
from kvattach.switch import Strict
from kvlab.owntests.results import VARIABLE, Outcome


class Watching:
    """The tests of one process."""

    def __init__(self, path: Path) -> None:
        """Observe all hooks that are made from now on, and each finding."""
        self._path = path
        self._hooks: list[Hooks] = []
        self._found: list[str] = []
        self._before = 0
        self._listen()

    def _listen(self) -> None:
        made, emit, hooks, found = Hooks.__init__, Strict.emit, self._hooks, self._found

        def make(one: Hooks, *args: Any) -> None:
            made(one, *args)
            hooks.append(one)

        def check(trace: Strict, *events: Any) -> None:
            try:
                emit(trace, *events)
            except RuleBroken as broken:
                found.append(str(broken))
                raise

        setattr(Hooks, "__init__", make)  # noqa: B010
        setattr(Strict, "emit", check)  # noqa: B010

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_protocol(self, item: Any) -> Any:
        """Forget the previous test."""
        self._found.clear()
        for hooks in self._hooks:
            hooks.problem = None
        self._before = self._events
        return (yield)

    @property
    def _events(self) -> int:
        return sum(hooks.events for hooks in self._hooks)

    def pytest_runtest_logreport(self, report: Any) -> None:
        """Write a line when a test is over, or has been skipped or broken before it began."""
        if report.when != "call" and report.outcome == "passed":
            return
        problems = [hooks.problem for hooks in self._hooks if hooks.problem is not None]
        said = "" if report.passed else _last_line(report)
        events = self._events - self._before
        test = Outcome(report.nodeid, report.outcome, said, events, [*self._found], problems)
        with self._path.open("ab") as file:
            file.write(msgspec.json.encode(test) + b"\n")


def _last_line(report: Any) -> str:
    lines = [line for line in str(report.longrepr).splitlines() if line.startswith("E ")]
    return lines[0][1:].strip() if lines else str(report.longrepr)[-200:]


# Hooks are made when an engine is imported, which a `conftest.py` may do before plugins are configured.
_WATCHING = Watching(Path(os.environ[VARIABLE])) if os.environ.get(VARIABLE) else None


def pytest_configure(config: Any) -> None:
    """Watch, if a file is named."""
    if _WATCHING is not None:
        config.pluginmanager.register(_WATCHING)


def pytest_collection_finish() -> None:
    """Exclude imports from garbage collection: engines' tests collect after each test, which takes longer than it."""
    gc.collect()
    gc.freeze()
    setattr(gc, "unfreeze", lambda: None)  # noqa: B010
