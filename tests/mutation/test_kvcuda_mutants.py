"""The list of kvcuda's mutants fits the modules as they are."""

import ast

from tests.mutation.kvcuda import changed
from tests.mutation.kvcuda_mutants import MUTANTS


def test_every_mutant_changes_one_place_and_is_python() -> None:
    for mutant in MUTANTS:
        ast.parse(changed(mutant))
    assert len(set(MUTANTS)) == len(MUTANTS) >= 30
