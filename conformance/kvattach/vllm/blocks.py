"""vLLM's block pools: the observed state of each, and reference counts that emit their changes."""

from typing import Any, Protocol

from kvattach.hooks import Hooks
from kvattach.vllm.residency import POOL


class Books:
    """The observed state of one block pool."""

    def __init__(self) -> None:
        """Begin without events, until the pool belongs to a scheduler."""
        self.name = POOL
        self.pool: Any = None
        self.observed = False
        self.taking = False
        self.touched: dict[int, int] = {}
        """Page with changes since the last `count` -> its references."""
        self.inserted: list[tuple[Any, int]] = []


class Attached(Protocol):
    """The part of the scheduler's hooks that receives the changes."""

    hooks: Hooks

    def observed(self, block: Any) -> Books | None:
        """The books of the pool that a block belongs to; `None` if its events are not emitted."""
        ...

    def counted(self, books: Books, block: Any, before: int, references: int) -> None:
        """A block's count changed."""
        ...


def books_of(owner: Any) -> Books:
    """The books of a pool, or of its map of names. The books of a map without a pool belong to no scheduler."""
    books: Books | None = vars(owner).get("_kvspec")
    if books is None:
        books = owner._kvspec = Books()
    return books


def counted(block: Any, attached: Attached) -> property:
    """The reference count of the class of blocks, which emits its changes.

    The class itself is not replaced: the engine's own code and its tests check the types of objects.

    Raises:
        AttributeError: the class has no slot for it.
    """
    read, write = vars(block)["ref_cnt"].__get__, vars(block)["ref_cnt"].__set__

    def changed(one: Any, references: int) -> None:
        books = attached.observed(one)
        if books is not None:
            attached.hooks.guarded(attached.counted, books, one, read(one), references)
        write(one, references)

    return property(read, changed, doc="The references to this block.")
