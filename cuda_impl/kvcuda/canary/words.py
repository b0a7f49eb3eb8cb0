"""The layout of what the canary's kernels are told, and of what they tell: int64 words throughout.

A launch travels as one array, as in `kvcuda.words`: nothing that changes from step to step is a kernel argument, so a
captured CUDA graph replays with new words.

    header            launch   requests   tokens   share
    for each pool     address of its table   address of its new slots
    for each request  row   number   first   count   known at   known label   fresh
                      and for each pool its place: offset, or for states   source   slot   border   border slot

`first` and `count` say which of the batch's new tokens are the request's. `row` is where the canary keeps the labels of
the last positions that the request wrote; -1 for padding. A known label is one that the host computed from the tokens,
at the position `known at`, or -1 for none; a `fresh` request begins behind that position, and its row says nothing yet.

What never changes stands in another array, an entry a pool:

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
"""Who wrote a slot is one word: the request's number above the launch's."""
RECENT = 64
"""Last positions of each row whose labels are kept; more drafts than that cannot be taken back."""


class Kind(IntEnum):
    """How a pool's slots are found."""

    SLOTS = 0
    """A token's slot, through a row of slot indices or a block table."""
    STATES = 1
    """A request's state, by the number of its slot."""


class What(IntEnum):
    """What is wrong with a slot that a pass is about to read or write."""

    OTHER = 1
    """It holds other content than follows from the position before it."""
    NEVER = 2
    """Nothing was ever written there."""
    LAST = 3
    """The last position holds other content than the request has written or means."""
    KNOWN = 4
    """It holds other content than the request's tokens say."""
    RANGE = 5
    """There is no such slot."""
    BYTES = 6
    """The bytes are not those that were written."""
    WRITES = 7
    """There is no such slot, and the pass is about to write it."""
