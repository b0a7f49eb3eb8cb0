"""The list of kvref's mutants fits the modules as they are."""

import ast

from tests.mutation.defects import KVREF, changed
from tests.mutation.kvref_mutants import MUTANTS


def test_every_mutant_changes_one_place_and_is_python() -> None:
    for mutant in MUTANTS:
        ast.parse(changed(KVREF, mutant))
    assert len(set(MUTANTS)) == len({mutant.what for mutant in MUTANTS}) == len(MUTANTS) >= 25
