"""The list of kvcuda's mutants fits the modules as they are."""

import ast

from tests.mutation.defects import KVCUDA, ROOT, changed
from tests.mutation.kvcuda_mutants import MUTANTS


def test_every_mutant_changes_one_place_and_is_python() -> None:
    for mutant in MUTANTS:
        ast.parse(changed(KVCUDA, mutant))
    assert len(set(MUTANTS)) == len(MUTANTS) >= 30


def test_what_is_tried_first_is_there() -> None:
    for mutant in MUTANTS:
        file, _, test = mutant.first.partition("::")
        text = (ROOT / "tests" / "cuda_impl" / f"test_{file}.py").read_text() if file else ""
        assert f"def {test}" in text or not test, mutant.first
