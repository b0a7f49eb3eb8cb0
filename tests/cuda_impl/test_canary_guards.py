"""The device manager under the canary: silent on all that conforms."""

from pathlib import Path

import pytest
import torch

from kvconform.features import lacks, needs
from kvconform.gallery.replaying import Run, carry_out
from kvconform.traces.codec import read_vector
from kvconform.traffic.soak import Combination, run_of
from kvconform.vectors.files import vector_files
from kvconform.vectors.runner import run_vector
from kvcuda.manager import Manager
from kvref.scheduler import Scheduler
from kvspec.tokens import Tokens
from tests.cuda_impl.guarded import Recorded, guarded, token_ids
from tests.marks import one_in

pytestmark = pytest.mark.slow

VECTORS = [path for path in vector_files() if not needs(read_vector(path)) & lacks(Manager)]
if not torch.cuda.is_available():
    VECTORS = VECTORS[::2]  # interpreted, each takes half a second; `make conformance` replays all of them


@pytest.mark.parametrize(
    "path",
    one_in(3, VECTORS),
    ids=lambda path: path.stem,
)
def test_no_violation_in_a_vector(path: Path) -> None:
    vector = read_vector(path)
    known: list[Tokens] = []
    run_vector(vector, lambda config: Recorded(config, known))
    tokens = [token_ids(one) for one in known]
    watched = guarded(lambda manager, run: tokens[manager.ordinal(run)])
    outcome = run_vector(vector, watched)
    assert outcome.finding is None, outcome.finding
    (manager,) = watched.made
    assert manager.guard.found() == []
    assert manager.guard.passes or '"op":"launch"' not in path.read_text().replace(" ", "")


SOAKS = [run_of(1, number) for number in (968, 1417)]
"""Two combinations: chunks beside decodes with drafts; and launches that overlap, windows, aborts and closes."""


@pytest.mark.thorough
@pytest.mark.parametrize(("combination", "run"), SOAKS, ids=[f"{one.page_size}-{one.pool}" for one, _ in SOAKS])
def test_no_violation_in_a_soak(combination: Combination, run: Run) -> None:
    tokens = {one.name: [*one.tokens, *one.outputs] for one in run.traffic}
    watched = guarded(lambda manager, run: [int(token) for token in tokens[run.name]])
    _, finding = carry_out(watched, Scheduler, run)
    assert finding is None, finding
    (manager,) = watched.made
    assert manager.guard.found() == []
    assert manager.guard.passes > 10
