"""The scheduler overlaps over a host tier, completions come late and in any order, and the memory checker checks it."""

from itertools import accumulate

import pytest

from kvconform.gallery.tiers import TIER_BUGS
from kvconform.gallery.walking import scheduled
from kvref.req_to_token_pool import ReqToTokenPool
from kvref.scheduler.policy import SchedulerConfig
from kvref.tiers.engine import Part
from kvref.tiers.manager import RowedEngine
from kvref.tiers.state import Request
from kvref.tiers.transfers import Transfers
from kvspec.events import Complete, Launch
from kvspec.memory.events import Begin, End, Event, Wait
from tests.reference.scheduling import ROOMY, outputs_of, run, sampled, traffic

pytestmark = pytest.mark.slow

SEEDS = range(40)


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("overlap", [1, 3])
@pytest.mark.parametrize("interval", [0, 3])
def test_random_completion_conforms_and_changes_no_token(seed: int, overlap: int, interval: int) -> None:
    config = SchedulerConfig(
        max_prefill_tokens=40,
        chunked_prefill_size=13,
        overlap=overlap,
        completion_seed=seed + 1,
        retract_interval=interval,
        close_interval=interval,
    )
    watched, scheduler = run(ROOMY, traffic(40, 4, 4), config)
    assert scheduler.finished == 40
    assert sampled(watched) == outputs_of(40, 4)


def test_deep_overlap_has_several_launches_in_flight() -> None:
    watched, _ = run(ROOMY, traffic(20, 4, 4), SchedulerConfig(overlap=3, completion_seed=1))
    in_flight = accumulate(isinstance(op, Launch) - isinstance(op, Complete) for op in watched.done)
    assert {1, 2, 3, 4} <= set(in_flight)


# With a host tier


@pytest.mark.parametrize("seed", range(25))
def test_nothing_is_found_in_a_run_with_a_host_tier(seed: int) -> None:
    assert scheduled(seed).findings == []


def test_runs_with_a_host_tier_overlap_and_transfer() -> None:
    events = [event for seed in SEEDS for event in scheduled(seed).events]
    assert {event.stream for event in events if isinstance(event, Begin)} == {
        "forward",
        "rows",
        "write",
        "load",
        "prefetch",
    }
    assert {(event.stream, event.on) for event in events if isinstance(event, Wait)} == {
        ("load", "forward"),
        ("forward", "rows"),
        ("rows", "forward"),
    }


def rules_found(engine: type[RowedEngine]) -> set[str]:
    """The rules of the first run with a finding."""
    for seed in SEEDS:
        found = scheduled(seed, engine).findings
        if found:
            return {finding.rule for finding in found}
    return set()


@pytest.mark.parametrize(
    "name",
    [
        "load-unfenced",
        "pass-does-not-wait-for-load",
        "pass-waits-for-one-load",
        "host-page-evicted-while-loaded",
        "device-page-evicted-while-copied",
        "source-unpinned",
    ],
)
def test_wrong_protocol_of_the_host_tier_is_found(name: str) -> None:
    bug = TIER_BUGS[name]
    engine: type[RowedEngine] = type("Scheduled", (bug.engine, RowedEngine), {})
    assert rules_found(engine) & set(bug.rules)


class _NeverRead(ReqToTokenPool):
    def is_read(self, row: int) -> bool:
        return False


class HandsRowsOn(RowedEngine):
    """A row is free although a pass in flight reads it."""

    rows_type = _NeverRead


class _NoFenceBeforeRows(Transfers):
    def fence(self, stream: str, on: str) -> None:
        if stream != "rows":
            super().fence(stream, on)


class RewritesRows(RowedEngine):
    """A row is rewritten while a pass in flight reads it."""

    transfers_type = _NoFenceBeforeRows


class _NoFenceBeforePasses(Transfers):
    def fence(self, stream: str, on: str) -> None:
        if on != "rows":
            super().fence(stream, on)


class LaunchesEarly(RowedEngine):
    """A pass does not wait for its rows."""

    transfers_type = _NoFenceBeforePasses


class AssumesCompletion(RowedEngine):
    """A pass counts as complete before the host has seen it."""

    def computed(self, id: int) -> list[tuple[Part, Request]]:
        emit = self.emit

        def blind(event: Event) -> object:
            return None if isinstance(event, End) else emit(event)

        self.emit = blind
        still = super().computed(id)
        self.emit = emit
        return still


@pytest.mark.parametrize("engine", [HandsRowsOn, RewritesRows, LaunchesEarly, AssumesCompletion])
def test_wrong_protocol_of_rows_and_passes_is_found(engine: type[RowedEngine]) -> None:
    assert "MEM-RACE" in rules_found(engine)
