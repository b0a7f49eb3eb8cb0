"""Reference counts of vLLM's blocks: their changes are heard, and the class of blocks stays as it is."""

from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest

from kvattach.hooks import Hooks
from kvattach.vllm.blocks import Books, books_of, counted
from kvlab.drives import CheckedTrace


class Heard:
    """The changes of one pool's blocks."""

    def __init__(self) -> None:
        self.hooks = Hooks(CheckedTrace())
        self.books = Books()
        self.changes: list[tuple[int, int, int]] = []
        self.blocks: list[Any] = []

    def observed(self, block: Any) -> Books | None:
        return self.books if any(block is one for one in self.blocks) else None

    def counted(self, books: Books, block: Any, before: int, references: int) -> None:
        assert books is self.books
        self.changes.append((block.block_id, before, references))


def test_changes_are_heard_and_the_class_is_the_engines_own() -> None:
    @dataclass(slots=True)
    class Block:
        block_id: int
        ref_cnt: int = 0

    heard, made = Heard(), Block(1)
    heard.hooks.set(Block, "ref_cnt", counted(Block, heard))
    later, foreign = Block(2, ref_cnt=1), Block(1)
    heard.blocks += [made, later]
    made.ref_cnt += 2
    later.ref_cnt -= 1
    foreign.ref_cnt = 4
    assert heard.changes == [(1, 0, 2), (2, 1, 0)]
    assert type(later) is type(made) is Block
    assert (made.ref_cnt, later.ref_cnt, foreign.ref_cnt) == (2, 0, 4)
    assert Block(5, 1) == Block(5, 1)
    heard.hooks.detach()
    made.ref_cnt = 0
    assert len(heard.changes) == 2 and made.ref_cnt == 0


def test_a_class_without_slots_is_refused() -> None:
    @dataclass
    class Block:
        ref_cnt: int = 0

    with pytest.raises(AttributeError):
        counted(Block, Heard())


def test_a_map_without_a_pool_has_books_of_its_own() -> None:
    names = SimpleNamespace()
    assert books_of(names) is books_of(names)
    assert not books_of(names).observed
