"""Memory events, in the terms of any engine's allocator.

A *pool* has pages: KV pages, request rows, window pages, state slots, pages of a host tier, the objects of a storage. A
*holder* is a piece of work that refers to pages: a run of a request, a session slot, a transfer. A second turn or a
recompute is another holder. An *operation* is work queued on a device or a transfer engine; it reads and writes slots.
A *label* names content: for KV, the token prefix that ends there. `label_size` slots in a row share a label, and slot
`i` of a label means its `i`-th token: equal labels mean equal content at equal offsets. A rule that needs a field which
is not reported is not checked.
"""

from typing import Literal

import msgspec

Page = int | str
"""The number of a page, or in a key-addressed pool its key."""
Pages = list[int | str | tuple[int, int]]
"""Pages in order; a pair `(first, count)` stands for `first, first + 1, ...`."""
Label = str
OpId = int | str
Done = Literal["all", "reads"]
"""How much of an operation is done; `reads`: at least its reads are."""


class Pool(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """One pool, as the header of a trace names it: `page_size` slots a page."""

    page_size: int = 1
    num_pages: int | None = None
    """Pages are numbered `first_page`, `first_page + 1`, ... up to so many; `None`: unknown, or keys."""
    first_page: int = 1
    label_size: int = 0
    """Slots a label; it divides `page_size`. 0: a whole page has one label."""
    padding: list[int] = []
    """Padding pages: any operation may write them, none may read them for a position, and they are never taken."""
    keyed: bool = False
    """Pages are named by keys and have no holder: a storage. No page is taken or held."""
    writes_reported: bool = True
    """Whether all writes are reported; if not, reads of slots that were never written are not checked."""
    reads_own_writes: bool = True
    """Whether reads of it see what the same operation writes, as in attention; recurrent states are read first."""


class Use(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, gc=False):
    """Slots that an operation reads or writes: positions of a table, or slots of pages.

    `start` and `stop` are positions: in the table, or in the pages one after the other. `stop` 0 is the end of them.
    """

    table: str | None = None
    pool: str | None = None
    pages: Pages = []
    start: int = 0
    stop: int = 0
    labels: list[Label] | None = None
    """The meant content, a label for each `label_size` slots that it touches. `None`: that of its table, or unknown."""
    holder: str | None = None
    """The holder for whom pages are used; a table has its own. `None`: not reported."""
    at_most: bool = False
    """An upper bound: it is not known which of these slots are written."""


class Event(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True, tag_field="op", kw_only=True):
    """The common part of all events."""

    at: str | None = None
    """Where in the engine it comes from: a function, or file and line."""
    host: str | None = None
    """The process that reports it, where a trace has several; see `Send`."""


class Referring(Event, kw_only=False):
    """A change of a holder's references to pages."""

    holder: str
    pool: str
    pages: Pages


class Take(Referring, tag="take"):
    """The allocator hands out free pages. Their old content no longer counts."""


class Share(Referring, tag="share"):
    """One more reference to pages that are in use or published: a cache hit, a lock, a fork."""

    keys: list[str] | None = None
    """The names under which the pages were found, one a page."""
    pin: bool = False
    """It only keeps the page from being handed out (a transfer's source, a deferred free): it does not share it."""


class Release(Referring, tag="release"):
    """One reference less to each page. A page without references and names is free."""


class Transfer(Event, tag="transfer", kw_only=False):
    """References pass from `old` to `new`: those to `pages`, or all in a pool or everywhere, and then tables too."""

    old: str
    new: str
    pool: str | None = None
    pages: Pages | None = None


class Publish(Event, tag="publish", kw_only=False):
    """Pages can be found by a name from now on, one key a page."""

    pool: str
    pages: Pages
    keys: list[str]
    labels: list[Label] | None = None
    """The promised content: a label for each `label_size` slots of each page. `None`: not reported."""
    slots: int = 0
    """How many slots of each page the names promise; 0: all."""
    planned: bool = False
    """The promised content is still to be written."""
    writer: str | None = None
    """The holder that is to write the planned content; `None`: any holder of the page."""


class Drop(Event, tag="drop", kw_only=False):
    """Names are withdrawn, one a page, or every name of these pages."""

    pool: str
    pages: Pages
    keys: list[str] | None = None


class Map(Event, tag="map", kw_only=False):
    """A holder's block table names pages from page index `index` on; `labels` are the meant content, as in a use."""

    table: str
    holder: str
    pool: str
    index: int = 0
    pages: Pages = []
    labels: list[Label] | None = None


class Unmap(Event, tag="unmap", kw_only=False):
    """A table ends before page index `index`; or its pages from there to before `stop` are gone, and leave a hole."""

    table: str
    index: int = 0
    stop: int = 0


class Reserve(Event, tag="reserve", kw_only=False):
    """So many further pages are promised to a holder: free or cached ones that it may take later. 0 ends it."""

    holder: str
    pool: str
    pages: int


class Begin(Event, tag="begin", kw_only=False):
    """An operation is queued: a forward pass, a copy, a transfer, a write of a row.

    On the stream `host` it is done at once. Without a stream it is ordered only after what the host has seen.
    """

    id: OpId
    stream: str | None = None
    reads: list[Use] = []
    writes: list[Use] = []
    copies: list[tuple[Use, Use]] = []
    """Source and target. The content of the source goes to the target, so that hooks need not know the tokens."""
    after: list[OpId] = []
    """Operations that it waits for by itself, as a whole or layer by layer."""
    reads_own_writes: bool = True
    """Whether its reads see its own writes. In a pool without `reads_own_writes` they never do."""


class Wait(Event, tag="wait", kw_only=False):
    """Later operations of `stream` come after an operation, or after all that `on` has queued so far."""

    stream: str
    id: OpId | None = None
    on: str | None = None
    part: Done = "all"


class End(Event, tag="end", kw_only=False):
    """The host has seen an operation complete, and with it all that is ordered before it."""

    id: OpId
    part: Done = "all"
    unwritten: list[Use] = []
    """Slots that it was to write and did not: a load that failed, a transfer that was cut off."""


class Send(Event, tag="send", kw_only=False):
    """A host sends a message to others: a request with the pages to fill, a notification, an acknowledgement.

    If a host has seen an operation complete, another one knows it only from a message that was sent afterwards. A host
    that occurs for the first time knows what all the others know.
    """

    id: str
    after: list[OpId] = []
    """Operations with which the message goes out, once they are complete: a transfer that notifies its target."""


class Receive(Event, tag="receive", kw_only=False):
    """A host receives a message. A message whose sending is not reported orders nothing."""

    id: str


class Decide(Event, tag="decide", kw_only=False):
    """A host decides something that all hosts of a group decide, in the same order: the ranks of one engine.

    Equal words mean equal decisions: the length of a prefix, how many pages are taken for which content, a victim.
    """

    group: str
    what: str


class Announce(Event, tag="announce", kw_only=False):
    """A host announces to routers which blocks a tier holds: all are cleared, then some removed, then some stored.

    Names of blocks are those under which pages are published. A batch is one or more events, the first with its number.
    """

    tier: str | None = None
    """The tier, such as `GPU`; `None`: all tiers of the host, in an event that stores and removes nothing."""
    stored: list[str] = []
    """Blocks that follow one another: each is the parent of the next."""
    parent: str | None = None
    """The block before the first one; `None`: there is none, or it is not reported."""
    labels: list[Label] | None = None
    """The announced content, as many labels for each block as a publish has. `None`: not reported."""
    removed: list[str] = []
    cleared: bool = False
    pool: str | None = None
    """From this event on the routers know the names of all pages of a pool, and no others. `None`: not reported."""
    batch: int | None = None
    """The number of the batch that begins here, from 0 on without a gap. At 0 an engine begins that holds nothing."""


class Deliver(Event, tag="deliver", kw_only=False):
    """The result of an operation for a holder leaves the engine: a token to a client, a block to another machine."""

    id: OpId
    holder: str


class Unify(Event, tag="unify", kw_only=False):
    """Two labels are the same, in their first `slots` slots, or wholly (0): what was sampled in flight is known now."""

    label: Label
    same: Label
    slots: int = 0


class EndHolder(Event, tag="end_holder", kw_only=False):
    """A holder is gone: nothing of it may be left."""

    holder: str


class Idle(Event, tag="idle", kw_only=False):
    """The engine is idle: only `keepers` may hold pages, of any pool or of those in `pools`."""

    keepers: list[str] = []
    pools: list[str] | None = None
    """The pools that are idle, those of one host; `None`: all."""


class Count(Event, tag="count", kw_only=False):
    """The engine's own counts of pages, or its lists: free, published without references, held; and the references."""

    pool: str
    free: int | Pages | None = None
    cached: int | Pages | None = None
    held: int | Pages | None = None
    references: dict[int, int] | None = None


class Failed(Event, tag="failed", kw_only=False):
    """The engine gave up, which is a finding by itself."""

    kind: Literal["assertion", "exhausted", "stuck"]
    what: str


Held = Take | Share | Release | Transfer | Publish | Drop | Reserve | EndHolder | Idle | Count | Failed
MemoryEvent = Held | Map | Unmap | Begin | Wait | End | Send | Receive | Decide | Announce | Deliver | Unify
