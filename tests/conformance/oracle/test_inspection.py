"""A look at the whole state where there are all pools at once."""

import pytest
from msgspec.structs import replace

from kvconform.oracle import Model
from kvspec.events import Config, Extend, Launch, MatchPrefix, Snapshot, SnapshotAnswer, Submit
from kvspec.rules import Violation

ALL_POOLS = Config(4, 16, 3, 64, sliding_window=4, num_window_pages=16, num_states=8)


def test_a_holder_shows_its_cursor_beside_its_states() -> None:
    model = Model(ALL_POOLS)
    for op in (Submit("r", [*range(9)]), MatchPrefix("r"), Extend([("r", 9)]), Launch(1, ["r"])):
        model.step(op)
    look = Snapshot()
    model.step(look)
    assert look.obs is not None and look.obs.requests is not None
    view = look.obs.requests["r"]
    assert (view.swa_evicted_len, view.computing, view.tracking) == (0, 1, {8: 2})
    with pytest.raises(Violation, match=r"^SWA-2: swa_evicted_len of request r is wrong"):
        model.step(Snapshot(obs=SnapshotAnswer(requests={"r": replace(view, swa_evicted_len=4)})))
