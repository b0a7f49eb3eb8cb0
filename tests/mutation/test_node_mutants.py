"""The list of the Rust node's mutants fits the modules as they are."""

from tests.mutation.defects import NODE, changed
from tests.mutation.node_mutants import MUTANTS


def test_every_mutant_changes_one_place() -> None:
    for mutant in MUTANTS:
        assert changed(NODE, mutant) != (NODE / mutant.module).read_text()
    assert len({mutant.mistake for mutant in MUTANTS}) == len(MUTANTS) >= 20
