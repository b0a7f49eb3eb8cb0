"""Implementations explored beside the specification, and the command."""

from typing import NoReturn

import pytest
import typer
from typer.testing import CliRunner

from kvcli.searching import explore
from kvconform.exploring import SCOPES, compare
from kvconform.exploring.lockstep import Copier, DeepCopier, Replayer, copier
from kvconform.exploring.report import length
from kvconform.gallery.finders import rule_of
from kvconform.gallery.mutants import BUGS
from kvref.manager import Manager
from kvspec.events import Config, Refusal
from tests.conformance.exploring.small import POOLS, SMALL, small_with
from tests.marks import one_in

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("pools", [pytest.param(one, marks=pytest.mark.thorough if one else ()) for one in POOLS])
def test_the_reference_conforms_in_every_state(pools: str) -> None:
    result = compare(small_with(pools)._replace(arrivals=SMALL.arrivals[:2]), Manager)
    assert result.complete
    assert result.finding is None
    assert result.states > 100


class Plain(Manager):
    """Has no sessions."""

    lacks = frozenset(("sessions",))

    def open_session(self, session: str) -> NoReturn:
        raise Refusal(None, session)


def test_nothing_is_asked_that_is_lacking() -> None:
    found = compare(SMALL, Plain)
    assert found.finding is None and found.states > 20


SHORTEST = {
    "held-not-rounded-up": ("tiny", "ACC-1", 3),
    "last-slot-kept": ("tiny", "PAGE-1", 4),
    "stale-row-index": ("tiny", "ROW-4", 4),
    "row-freed-between-chunks": ("tiny", "ROW-2", 5),
    "row-freed-while-read": ("tiny", "RACE-1", 5),
    "continuing-chunk-samples": ("tiny", "CHUNK-1", 5),
    "locked-page-evicted": ("tiny", "STORE-3", 6),
    "protected-from-unaligned-prefix": ("tiny", "LEN-2", 7),
    "tail-freed-from-inside-a-page": ("tiny", "TAIL-2", 7),
    "speculative-tail-orphaned": ("tiny", "TAIL-1", 8),
    "lock-taken-at-retry": ("tiny", "STORE-2", 8),
    "abort-saves-inflated-lengths": ("speculative", "SESS-5", 5),
    "chunk-stash-published": ("speculative", "SESS-6", 6),
    "close-frees-kv-in-use": ("speculative", "SESS-4", 6),
    "retract-tail-orphaned": ("speculative", "TAIL-1", 7),
    "two-new-chunks-in-a-batch": ("chunks", "BATCH-1", 5),
    "last-chunk-forbids-first-chunk": ("chunks", "BATCH-1", 7),
    "reservation-from-wrong-length": ("chunks", "CAP-1", 8),
    "allocated-falls-behind": ("tiny", "LEN-1", 5),
    "resumed-below-protected": ("tiny", "LEN-3", 10),
    "pages-counted-from-the-extend": ("tiny", "PAGE-2", 9),
    "slots-counted-on": ("tiny", "PAGE-3", 8),
    "front-page-evicted": ("tiny", "STORE-1", 9),
    "last-token-matched": ("tiny", "STORE-4", 8),
    "second-turn-accepted": ("tiny", "SESS-1", 3),
    "chunk-beside-a-chunk": ("chunks", "BATCH-2", 6),
    "published-before-launch": ("tiny", "LAUNCH-1", 4),
    "verified-in-flight": ("speculative", "SPEC-1", 8),
    "row-withheld-for-one-launch": ("three-in-flight", "RACE-1", 8),
    "forgotten-by-the-oldest": ("three-in-flight", "CHUNK-1", 9),
}
"""Where a defect is found, by which rule, and after how many operations."""


@pytest.mark.parametrize("name", one_in(3, SHORTEST))
def test_a_defect_is_found_by_a_shortest_trace(name: str) -> None:
    scope, rule, count = SHORTEST[name]
    result = compare(SCOPES[scope], BUGS[name].factory)
    assert result.finding is not None
    assert rule_of(result.finding) == rule
    assert rule in BUGS[name].rules
    assert length(result.finding.operations) == count


@pytest.mark.parametrize("name", ["last-slot-kept", "row-freed-between-chunks", "two-new-chunks-in-a-batch"])
def test_no_shorter_trace_is_missed_because_states_are_taken_for_one(name: str) -> None:
    scope, _, count = SHORTEST[name]
    apart = compare(SCOPES[scope], BUGS[name].factory, full_state=True, deepest=count - 1)
    assert apart.finding is None
    assert not apart.complete


class Unpicklable(Manager):
    """Can be copied, but not written down."""

    def __init__(self, config: Config) -> None:
        super().__init__(config)
        self.config_of = lambda: config


class Uncopyable(Unpicklable):
    """Can only be made again."""

    def __deepcopy__(self, memo: object) -> "Uncopyable":
        raise TypeError("this lives on a device")


@pytest.mark.parametrize(
    ("factory", "kind"),
    [(Manager, Copier), (Unpicklable, DeepCopier), (Uncopyable, Replayer)],
    ids=lambda one: one.__name__,
)
def test_an_implementation_is_copied_as_it_allows(factory: type[Manager], kind: type[Copier]) -> None:
    scope = SMALL._replace(arrivals=SMALL.arrivals[:1])
    assert type(copier(factory, scope)) is kind
    assert compare(scope, factory)._replace(seconds=0) == compare(scope, Manager)._replace(seconds=0)


# The command


@pytest.fixture
def command() -> typer.Typer:
    app = typer.Typer()
    app.command()(explore)
    return app


def test_the_command_prints_what_was_reached_and_what_was_not(
    command: typer.Typer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SCOPES, "small", SMALL._replace(sometimes=frozenset(("overshoot",))))
    done = CliRunner().invoke(command, ["--scope", "small", "--jobs", "1"])
    assert done.exit_code == 1
    assert "tail freed" in done.output
    assert "declared, but not reached" in done.output


def test_the_command_prints_the_shortest_trace_of_a_defect(command: typer.Typer) -> None:
    done = CliRunner().invoke(command, ["--scope", "tiny", "--bug", "last-slot-kept"])
    assert done.exit_code == 1
    assert "PAGE-1 is broken" in done.output
    assert "The shortest operations" in done.output


@pytest.mark.parametrize(
    "arguments",
    [
        ["--scope", "none"],
        ["--without", "launch"],
        ["--bug", "none"],
        ["--bug", "endless-prefill-retract-loop"],
        ["--bug", "last-slot-kept", "--impl", "reference"],
    ],
)
def test_a_wrong_call_is_reported(command: typer.Typer, arguments: list[str]) -> None:
    assert CliRunner().invoke(command, arguments).exit_code == 2
