"""Drafts in MAX: the stand-in for the graph between two passes, the parts of requests in a pass, and whole drives."""

import random
from dataclasses import replace

import pytest

from kvattach.max.hooks import DRAFTER, Attached, Part
from kvattach.patches import Patches
from kvlab.drives import Attachment, CheckedTrace
from kvlab.max import driver
from kvlab.max.cache import Leaf
from kvlab.max.device import Buffer
from kvlab.max.drafts import Drafting, Kind, Realizing
from kvlab.max.engine import load
from kvlab.max.fixes import fix
from tests.kvlab.checkout import release_of

NOWHERE = -(1 << 31)
"""The engine's index of a row that the other batch does not have."""


def realized(*inputs: object, replicas: int = 1) -> list[list[object]]:
    arrays = [Buffer.from_numpy(one) for one in inputs]
    return [one.to_numpy().tolist() for one in Realizing(replicas).execute(*arrays)]


def test_a_pass_goes_on_where_the_pass_before_ended() -> None:
    # Two requests verified two drafts; the second one of them is the first row now, beside a prompt of three tokens.
    tokens, drafts, lengths = realized(
        [NOWHERE, 0], [1, NOWHERE], [-1, 5, 6, 7], [0, 1, 4], [70, 71], [[42, 42], [42, 42]], [12, 0],
        [[1, 2], [3, 4]], [[8, 8], [9, 9]], [0, 1],
    )  # fmt: skip
    assert tokens == [71, 5, 6, 7]
    assert drafts == [[3, 4], [42, 42]]
    assert lengths == [11, 0], "one of two drafts was rejected"


def test_a_pass_takes_as_many_proposals_as_it_verifies() -> None:
    tokens, drafts, lengths = realized([0], [0], [5, -1], [0, 2], [70], [[42]], [12], [[1, 2, 3]], [[8, 8, 8]], [3])
    assert (tokens, drafts, lengths) == ([5, 70], [[1]], [12])


def test_each_replica_has_the_lengths_of_its_requests() -> None:
    found = realized(
        [1, 0], [1, 0], [-1, -1], [0, 1, 2], [70, 71], [[42], [42]], [0, 1, 2], [12], [20],
        [[1], [2]], [[8], [9]], [0, 1],
        replicas=2,
    )  # fmt: skip
    assert found == [[71, 70], [[2], [1]], [12], [19]]


def test_a_drafter_writes_behind_the_accepted_drafts() -> None:
    part = Part(start=10, tokens=1, drafts=4, accepted=1, proposed=3)
    assert part.stop == 12
    assert part.ends("full") == 15
    assert part.ends(DRAFTER) == 15
    assert Part(start=10, tokens=1, drafts=1, accepted=1, proposed=3).ends(DRAFTER) == 15


@pytest.mark.parametrize(("kind", "at_once", "proposed"), [("sequential", 1, 3), ("block", 4, 5), ("shared", 1, 3)])
def test_a_block_has_a_position_for_each_proposal_and_its_anchor(kind: Kind, at_once: int, proposed: int) -> None:
    drafting = Drafting(kind, 4)
    assert (drafting.at_once, drafting.proposed) == (at_once, proposed)


def test_drafts_beside_states_are_those_that_a_server_allows() -> None:
    for seed in range(400):
        rng = random.Random(seed)
        shape = driver.Shape.drawn(rng).drafted(rng)
        drafting = shape.drafting
        assert drafting is not None and not shape.adapters
        states = any(leaf.kind == "recurrent" for leaf in shape.leaves.values())
        assert (DRAFTER in shape.leaves) == (drafting.kind != "shared")
        assert not (states and drafting.mixed) and not (states and drafting.kind == "shared")
        assert not (states and shape.caching) or drafting.kind == "block"


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["sequential", "block", "shared"])
@pytest.mark.parametrize("overlap", [True, False])
def test_drafts_of_each_kind_are_rejected_and_accepted(kind: Kind, overlap: bool) -> None:
    made = load(release_of("26.7.0", "max"))
    patches, trace, accepted, rejected = Patches(), CheckedTrace(), 0, 0
    fix(made, patches)
    drive = Attachment(lambda checked: Attached(made, checked))
    drive.attach(trace)
    queued = drive.attached.queued

    def counted(parts: dict[str, Part]) -> None:
        nonlocal accepted, rejected
        accepted += sum(part.accepted for part in parts.values())
        rejected += sum(part.drafts - part.accepted for part in parts.values())
        queued(parts)

    patches.set(drive.attached, "queued", counted)
    rng = random.Random(3)
    shape = replace(
        driver.Shape.drawn(rng),
        leaves={"full": Leaf("full"), "window": Leaf("window", 2, 9)}
        | ({} if kind == "shared" else {DRAFTER: Leaf("full")}),
        huge_blocks=40,
        batch=4,
        overlap=overlap,
        drafting=Drafting(kind, 3, mixed=2),
        mixed=True,
    )
    try:
        for seed in range(4):
            drive.ended(driver.run(made, drive.attached, seed, shape=shape, report=trace.find))
    finally:
        drive.attached.hooks.detach()
        patches.undo()
    assert accepted > 50 and rejected > 50
    assert not trace.found, trace.found[:3]
