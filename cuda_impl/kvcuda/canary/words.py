"""The layout of the canary's words, to its kernels and from them: int64 throughout.

A launch travels as one array, as in `kvcuda.words`. Nothing that changes from step to step is a kernel argument, so a
captured CUDA graph replays with new words.

    header            launch   requests   tokens   share
    for each pool     address of its table   address of its new slots
    for each request  row   number   first   count   known at   known label   fresh
                      and for each pool its place: offset, or for states   source   slot   border   border slot

`first` and `count` give the request's part of the batch's new tokens. `row` has the labels of the last positions that
the request wrote; -1 for padding. A known label is one that the host computed from the tokens, for the position
`known at`, or -1 for none. A `fresh` request begins behind that position, and its row has no labels yet.

The words that never change are in another array, one entry for each pool:

    kind   first index   slots   unit   window   address of the translation   first span   spans   page size
"""

from enum import IntEnum

HEADER = 4
POOL_WORDS = 2
REQUEST_WORDS = 7
PLACE_WORDS = 4
STATIC_WORDS = 9
SPAN_WORDS = 4
"""Of real bytes: address, bytes from page to page, bytes from slot to slot, 8-byte words of a slot."""
ENTRY_WORDS = 16
"""Of a violation; the last one is the digest of the others."""
LAUNCH_BITS = 32
"""A slot's writer is one word: the request's number above the launch's."""
RECENT = 64
"""Last positions of each row whose labels are kept; more drafts than that cannot be taken back."""


class Kind(IntEnum):
    """How a pool's slots are found."""

    SLOTS = 0
    """A token's slot, through a row of slot indices or a block table."""
    STATES = 1
    """A request's state, by the number of its slot."""


class ViolationKind(IntEnum):
    """The error of a slot that a pass is about to read or write."""

    OTHER = 1
    """Its content does not follow from the position before it."""
    NEVER = 2
    """It was never written."""
    LAST = 3
    """The last position does not have the content that the request wrote there, or that the host expects."""
    KNOWN = 4
    """Its content is not that of the request's tokens."""
    RANGE = 5
    """There is no such slot."""
    BYTES = 6
    """The bytes have changed since they were written."""
    WRITES = 7
    """There is no such slot, and the pass is about to write it."""
