"""The host tier of the reference is clean under the memory checker, and each of its mutants is not."""

from collections import Counter
from collections.abc import Callable

import pytest
from typer.testing import CliRunner

from kvcheck.words import describe
from kvcli.main import app
from kvconform.gallery.tiers import TIER_BUGS
from kvconform.gallery.walking import Walk, find_by_walks, scheduled, vector_name, vectors_of, walk
from kvref.tiers import TieredEngine
from kvref.tiers.manager import RowedEngine
from kvref.tiers.transfers import Transfer, Transfers
from kvspec.memory.events import Begin, End

QUICK = [
    "copied-when-queued",
    "device-page-evicted-while-copied",
    "evicted-page-keeps-name",
    "backup-published-early",
    "completion-twice",
    "duplicate-kept",
    "hit-not-counted",
    "lock-kept",
    "tail-lost",
    "tail-freed-twice",
    "leaves-before-release",
    "published-under-wrong-name",
    "page-missing",
    "handed-out-twice",
    "target-not-released",
    "target-taken-late",
]
"""Those that a few walks find; `kvspec tiers all` looks for the others too."""


@pytest.mark.slow
def test_the_clean_engine_breaks_no_rule_and_does_all_that_it_can() -> None:
    done: Counter[str] = Counter()
    for seed in range(120):
        one = walk(seed)
        assert one.findings == []
        for event in one.events:
            done[event.__struct_config__.tag] += 1  # type: ignore[index]
            if isinstance(event, Begin):
                done[f"{event.at}"] += 1
                done["waits for a load"] += bool(event.after)
            elif isinstance(event, End) and event.unwritten:
                done["failed"] += 1
    for deed in ("backup", "load", "store", "prefetch", "forward", "waits for a load", "failed", "deliver", "wait"):
        assert done[deed], deed


@pytest.mark.parametrize("name", TIER_BUGS)
def test_each_mutant_has_a_vector(name: str) -> None:
    assert list(vectors_of(TIER_BUGS[name])) == [vector_name(TIER_BUGS[name])]


@pytest.mark.parametrize("name", QUICK)
def test_walks_find_it_and_blame_its_rule(name: str) -> None:
    walked = find_by_walks(TIER_BUGS[name], walks=30)
    assert walked.walk is not None
    assert walked.walk.findings[0].rule in TIER_BUGS[name].rules


class NeverDone(Transfers):
    """A page that has been copied counts as being copied for good."""

    def complete(self, id: int, failed: bool) -> Transfer:
        transfer = super().complete(id, failed)
        transfer.node.moving += 1
        return transfer


class NeverEvicted(TieredEngine):
    transfers_type = NeverDone


class RowedNeverEvicted(RowedEngine):
    transfers_type = NeverDone


@pytest.mark.parametrize(
    "walking", [lambda seed: walk(seed, NeverEvicted), lambda seed: scheduled(seed, RowedNeverEvicted)]
)
def test_unused_pages_are_evicted_in_the_end(walking: Callable[[int], Walk]) -> None:
    found = {finding.rule: describe(finding) for finding in walking(0).findings}
    assert "never evicted" in found["MEM-FAILED"]


def test_an_unknown_mutant_is_one_line() -> None:
    result = CliRunner().invoke(app, ["tiers", "no-such-mutant"])
    assert result.exit_code == 2
    assert "no-such-mutant" in result.output


@pytest.mark.slow
def test_the_command_shows_a_mutant_and_walks_the_clean_engine() -> None:
    shown = CliRunner().invoke(app, ["tiers", "tail-lost"])
    assert (shown.exit_code, "1 of 1 mutants" in shown.output) == (0, True)
    soaked = CliRunner().invoke(app, ["tiers", "--minutes", "0.01"])
    assert (soaked.exit_code, "Nothing was found." in soaked.output) == (0, True)
