"""The nodes of the prefix store's radix trees."""

from kvspec.tokens import Page


class TreeNode:
    """The end of an edge: `key[i]` is the content of page `value[i]`.

    A split keeps the node as the *lower* part, so a holder's `last_node` still ends its prefix.
    """

    __slots__ = (
        "children",
        "key",
        "last_access",
        "lock_ref",
        "mamba_lock_ref",
        "mamba_value",
        "parent",
        "swa_lock_ref",
        "swa_tombstone",
        "value",
    )

    def __init__(self, key: list[Page], value: list[int], parent: "TreeNode | None") -> None:
        """A node without locks that was never used."""
        self.key = key
        self.value = value
        self.parent = parent
        self.children: dict[Page, TreeNode] = {}
        """By the first page of their edge."""
        self.lock_ref = 0
        """Locks on this node and below."""
        self.last_access = 0
        self.swa_tombstone = False
        """Whether its pages have lost their window sides; all of them or none (20070)."""
        self.swa_lock_ref = 0
        """Locks whose window reaches its pages."""
        self.mamba_value: int | None = None
        """The slot of the recurrent state at its end (17850)."""
        self.mamba_lock_ref = 0
        """Locks that end at this node."""


def parent_of(node: TreeNode) -> TreeNode:
    """The node above one that is not the root."""
    assert node.parent is not None, "the root has no edge: it is never split or evicted"
    return node.parent
