"""Protocols with two streams and a transfer engine: the right one holds in all interleavings, its mistake does not."""

import io

import pytest
from rich.console import Console
from typer.testing import CliRunner

from kvcheck import Checker
from kvcli.main import app
from kvconform.exploring.report import interleave_and_show
from kvconform.exploring.streams import POOLS, PROTOCOLS, Protocol, explore

EVERY = pytest.mark.parametrize("protocol", PROTOCOLS.values(), ids=PROTOCOLS)


@EVERY
def test_the_right_protocol_holds_in_all_interleavings(protocol: Protocol) -> None:
    explored = explore(protocol.actors)
    assert explored.finding is None and explored.ends > 1


@EVERY
def test_a_mistake_has_a_shortest_trace(protocol: Protocol) -> None:
    explored, checker = explore(protocol.wrong), Checker(POOLS)
    assert explored.finding is not None and explored.finding.rule == protocol.rule
    *before, last = explored.trace
    assert not any(checker.step(event) for event in before)
    assert [finding.rule for finding in checker.step(last)] == [protocol.rule]


def test_a_protocol_that_does_not_hold_is_reported() -> None:
    load, out = PROTOCOLS["load"], io.StringIO()
    assert not interleave_and_show(Console(file=out, width=120), [load._replace(actors=load.wrong)])
    assert not interleave_and_show(Console(file=out, width=120), [load._replace(wrong=load.actors)])
    assert "nothing orders them" in out.getvalue() and "nothing is found" in out.getvalue()


def test_protocols_are_scopes() -> None:
    done = CliRunner().invoke(app, ["explore", "--scope", "row", "--scope", "load"])
    assert done.exit_code == 0 and "holds" in done.output and "the row is rewritten in flight: MEM-RACE" in done.output
    assert CliRunner().invoke(app, ["explore", "--scope", "row", "--impl", "reference"]).exit_code == 2
