"""vLLM's block pools: the observed state of each, and reference counts of blocks that emit their changes."""

from typing import Any, Protocol

from kvattach.hooks import Hooks
from kvattach.vllm.residency import POOL


class Books:
    """One block pool, as its blocks show it."""

    def __init__(self) -> None:
        """It emits no event before it belongs to a scheduler."""
        self.name = POOL
        self.pool: Any = None
        self.observed = False
        self.taking = False
        self.touched: dict[int, int] = {}
        """References of the pages whose count changed since the last `count`."""
        self.inserted: list[tuple[Any, int]] = []


class Attached(Protocol):
    """The part of the scheduler's hooks that receives changes."""

    hooks: Hooks

    def observed(self, block: Any) -> Books | None:
        """The books of the pool that a block belongs to; `None` if its events are not emitted."""
        ...

    def counted(self, books: Books, block: Any, before: int, references: int) -> None:
        """A block's count changed."""
        ...


def books_of(owner: Any) -> Books:
    """The books of a pool, or of its map of names; those of a map without a pool belong to no scheduler."""
    books: Books | None = vars(owner).get("_kvspec")
    if books is None:
        books = owner._kvspec = Books()
    return books


def counted(block: Any, attached: Attached) -> property:
    """The reference count of the class of blocks, which emits its changes.

    The class itself stays as it is: the engine's own code, and its tests, ask what an object is an instance of.

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
