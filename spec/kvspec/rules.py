"""The rules, by their stable ids, and what is raised when one is broken."""

from typing import NamedTuple


class Rule(NamedTuple):
    """One rule: what must hold, why, and which documents it comes from (pull requests by number)."""

    id: str
    statement: str
    reason: str
    origin: str


class Violation(Exception):
    """A rule was broken."""

    def __init__(self, rule: "str | Rule", what: str, *, expected: object = None, observed: object = None) -> None:
        """Name the rule, say what happened, and set what was expected against what was observed."""
        self.rule = RULES[rule] if isinstance(rule, str) else rule
        super().__init__(f"{self.rule.id}: {what}")
        self.what = what
        self.expected = expected
        self.observed = observed


_RULES = (
    Rule(
        "ROW-1",
        "Every row is in exactly one state: free, held by one request, held by an idle session slot, lent by a slot "
        "to one request, or withheld until a launch completes (MEM-TAKE, MEM-RELEASE, MEM-LEAK).",
        "A row that two holders write mixes their block tables; a row that nobody names is lost for good.",
        "17850, 22213",
    ),
    Rule(
        "ROW-2",
        "A request keeps its row from its first extend to its release, over chunks and retries; a session keeps its "
        "row over turns.",
        "A chunked request that gives its row back between chunks lets another request overwrite it while the "
        "forward pass of the earlier chunk still reads it.",
        "17850",
    ),
    Rule(
        "ROW-3",
        "Row allocation is all or nothing, and a request that brings a row must be in the middle of its prefill or "
        "have committed KV.",
        "A batch that gets some of its rows and then fails leaves rows that no running request will ever free.",
        "17850, 994",
    ),
    Rule(
        "ROW-4",
        "A released row index is forgotten by its holder.",
        "A stale index frees, or writes, a row that has been handed to somebody else.",
        "17850",
    ),
    Rule(
        "LEN-1",
        "0 <= protected <= committed <= allocated <= max_context_len.",
        "Every range of positions that is freed, published or read is cut out by these lengths.",
        "22862, 994",
    ),
    Rule(
        "LEN-2",
        "The protected length is a whole number of pages.",
        "The prefix store owns whole pages; an unaligned protected length frees, or keeps, a page that two own.",
        "20070",
    ),
    Rule(
        "LEN-3",
        "A resumed turn never starts below the protected length.",
        "Sessions only grow: what the store owns of them stays their prefix.",
        "22862",
    ),
    Rule(
        "PAGE-1",
        "Free pages, the prefix store's pages and each holder's private pages partition 1..num_pages (MEM-TAKE, "
        "MEM-RELEASE, MEM-LEAK, MEM-NAME).",
        "A page in two sets is overwritten by one owner while the other reads it; a page in none is leaked.",
        "22862, 994",
    ),
    Rule(
        "PAGE-2",
        "A holder's block table is the prefix store's pages for [0, protected), then its private pages up to "
        "ceil(allocated).",
        "The border between the two decides what is unlocked and what is freed.",
        "20070",
    ),
    Rule(
        "PAGE-3",
        "Position i of a row is slot table[i // page_size] * page_size + i % page_size.",
        "Attention kernels that index by page and kernels that index by slot must read the same memory.",
        "20070",
    ),
    Rule(
        "TAIL-1",
        "After a resume the allocated length equals prefix_len, and the pages past it are free.",
        "The next extend overwrites the row from prefix_len on; what stood there is orphaned and never freed.",
        "22862",
    ),
    Rule(
        "TAIL-2",
        "No free touches a page that still holds a committed position of its holder.",
        "The allocator frees whole pages: freeing one slot of a page frees its committed neighbours.",
        "22862",
    ),
    Rule(
        "STORE-1",
        "The prefix store is prefix-closed: with a prefix it holds every shorter one.",
        "A match walks from the front; what lies behind a hole can neither be found nor evicted.",
        "20070",
    ),
    Rule(
        "STORE-2",
        "The locks are exactly the protected prefixes of holders; at idle, exactly those of sessions (MEM-SHARE, "
        "MEM-RELEASE, MEM-LEAK).",
        "A lock nobody holds pins memory for ever; a holder without its lock reads evicted memory.",
        "20476, 20070",
    ),
    Rule(
        "STORE-3",
        "Only unlocked leaves of the prefix store are evicted.",
        "Evicting a locked page, or one below which others hang, takes memory from a running request.",
        "20070",
    ),
    Rule(
        "STORE-4",
        "A request without a session slot matches the longest cached page-aligned prefix of its tokens but the last, "
        "never more.",
        "The last token is always recomputed, because its logits are needed; a longer match is another request's KV.",
        "22862",
    ),
    Rule(
        "STORE-5",
        "Publishing keeps the page that the store already has, frees the holder's duplicate and rewrites its row; "
        "it covers whole pages of what the last extend wrote, and only what has been launched.",
        "Freeing the shared page instead of the duplicate takes it from everybody who locked it.",
        "994, 20476",
    ),
    Rule(
        "SWA-1",
        "Free window pages and window sides partition 1..num_window_pages: a window page in use is behind exactly one "
        "page, which is in use too (MEM-TAKE, MEM-RELEASE, MEM-LEAK), and both pools are allocated from together or "
        "not at all.",
        "An allocation that gets one side and fails on the other leaks the side that it got.",
        "20070",
    ),
    Rule(
        "SWA-2",
        "A window side is given back only behind the window: the cursor is page-aligned, never goes back, and leaves "
        "every position that a later step or a resumed turn still reads.",
        "A step that reads a position whose window side is gone reads another request's memory.",
        "20070",
    ),
    Rule(
        "SWA-3",
        "A holder's private pages have a window side exactly from its cursor on; releasing a page releases its window "
        "side if it still has one, each once.",
        "Freeing by positions instead frees the sides before the cursor a second time, or never those behind it.",
        "20070",
    ),
    Rule(
        "SWA-4",
        "A match in the prefix store ends only where the window sides of its last pages are live as far as the window "
        "reaches.",
        "A tombstone still has its page, but a request that went on from there would read a window that is gone.",
        "20070",
    ),
    Rule(
        "SWA-5",
        "A lock covers the window sides of the last pages of its prefix, as many as the window reaches, and no more; "
        "those may not be evicted, the ones before may.",
        "A lock that reaches too short lets the window of a running request be evicted; one that reaches too far keeps "
        "the window pool full of what nobody reads.",
        "20070",
    ),
    Rule(
        "SWA-6",
        "Publishing to a tombstone revives it with the window side of the holder's duplicate, and frees one of the two "
        "pages: never the store's while somebody has locked it.",
        "A revival that frees the store's page takes it from those whose rows name it.",
        "20070",
    ),
    Rule(
        "MAMBA-1",
        "Every state slot is free, or belongs to one request, one idle session slot or one cached prefix (MEM-TAKE, "
        "MEM-RELEASE, MEM-LEAK, MEM-NAME).",
        "A state slot with two owners is overwritten by one while the other computes in it.",
        "17850",
    ),
    Rule(
        "MAMBA-2",
        "A request may own a state slot before it owns a row, and freeing the one does not free the other: every way "
        "out of the system gives back exactly the slots that it has.",
        "A slot that was taken before an admission that failed belongs to no row, and is leaked with its request.",
        "17850",
    ),
    Rule(
        "MAMBA-3",
        "A match ends where the store has a state, and a turn resumes where one of its own stands: where it was "
        "written to, or at the last page border that it kept.",
        "A recurrent state holds all tokens before it and cannot be taken back by one.",
        "17850",
    ),
    Rule(
        "MAMBA-4",
        "The store keeps states at page borders of cached prefixes only. It takes one over when the holder has kept "
        "it; the holder then has a copy, a fresh slot, or has ended.",
        "A state that is at once the store's and a running request's is no longer that of the prefix.",
        "17850",
    ),
    Rule(
        "MAMBA-5",
        "Only states of prefixes that nobody has locked at their very end are evicted.",
        "The holder of the lock went on from that state, and may have to begin there again.",
        "17850",
    ),
    Rule(
        "SESS-1",
        "A session has at most one turn in flight.",
        "Two turns would write the same row.",
        "20476",
    ),
    Rule(
        "SESS-2",
        "A turn resumes its session at the committed length, or at its tokens less one if that is shorter, and "
        "repeatably: a request that is not admitted matches again and gets the same answer, and nothing leaks.",
        "A restore that empties the slot makes the second match fall through to the prefix store and take locks "
        "that nobody releases.",
        "20476",
    ),
    Rule(
        "SESS-3",
        "A lent slot is counted once: by the request that borrowed it, or, where turns count as sessions, by the slot.",
        "Counting the slot and its borrower reports a leak that is not there.",
        "22213",
    ),
    Rule(
        "SESS-4",
        "Closing a session with a turn in flight releases its memory when the turn ends, not before.",
        "Freeing memory that a running request uses corrupts it.",
        "22213, 21875",
    ),
    Rule(
        "SESS-5",
        "Aborting a turn that ran wipes the session's KV and returns its tokens to the last finished turn; a turn "
        "that never ran leaves the slot as its last match left it.",
        "KV of tokens that the client never got would be taken for valid by the next turn.",
        "22862, 22790",
    ),
    Rule(
        "SESS-6",
        "Sessions are append-only: a turn's tokens begin with the session's history, and only a turn that began on an "
        "empty slot publishes to the prefix store, at its last chunk.",
        "A resumed turn trusts that what is committed is a prefix of its tokens.",
        "20476, 22862",
    ),
    Rule(
        "BATCH-1",
        "A prefill batch has at most one continuing chunked request and at most one newly chunked one; both may be "
        "in it.",
        "The scheduler tracks one of each; the last chunk of one request and the first of another may share a batch.",
        "20476",
    ),
    Rule(
        "BATCH-2",
        "After a prefill batch at most one request is in the middle of its prefill.",
        "The scheduler continues exactly one; a second one keeps its row and pages and is never continued.",
        "20476",
    ),
    Rule(
        "CHUNK-1",
        "A token is sampled exactly when the launch that covered the last input position completes.",
        "A token sampled in the middle of a prompt becomes part of it, and every later position shifts.",
        "994",
    ),
    Rule(
        "SPEC-1",
        "A verify commits at least one and at most as many positions as its launch wrote, after that launch has "
        "completed, in the order of the launches; at most one further step of the request is prepared before it.",
        "Positions that no launch wrote hold whatever the page held before, and before the verify nobody knows at "
        "which position the next step begins.",
        "22862, 28754",
    ),
    Rule(
        "SPEC-2",
        "A speculative step that is prepared before the one before it is verified has room past all positions of both, "
        "and nothing of either counts before its own verify.",
        "It begins wherever that verify will say: with room for one step only it writes where no page is, or over the "
        "committed positions.",
        "22862, 28754",
    ),
    Rule(
        "ACC-1",
        "At idle and busy: available + evictable + protected + session_held + uncached is the whole pool, each "
        "counted by its own definition in whole pages; the same for rows.",
        "This sum is the engines' leak check: counted wrong, it cries wolf or stays silent.",
        "20070, 22213",
    ),
    Rule(
        "ACC-2",
        "At idle and busy, with a sliding window: available + evictable + protected + session_held + uncached of the "
        "window pool is the whole window pool, where held is ceil(allocated) - max(protected, cursor).",
        "A check that mixes the pools, or forgets the cursor, reports a leak that is not there.",
        "20070",
    ),
    Rule(
        "ACC-3",
        "At idle and busy, with recurrent states: available + evictable + protected state slots and those of sessions "
        "and requests are all of them.",
        "A state slot that no sum covers is missed only when none is left.",
        "17850",
    ),
    Rule(
        "RACE-1",
        "While a launch is in flight, no row position that it reads comes to mean other content (MEM-RACE).",
        "The device reads the row long after the host has handed the launch over.",
        "17850",
    ),
    Rule(
        "LAUNCH-1",
        "Launches complete in the order in which they were handed over, and positions count as written only once "
        "they are launched.",
        "A page published before the launch that fills it is handed over would be read empty.",
        "17850",
    ),
    Rule(
        "DATA-1",
        "Every committed position of a holder reads back the content of that holder's tokens (MEM-WRITTEN, "
        "MEM-CONTENT).",
        "This is what all the bookkeeping is for.",
        "17850, 22862",
    ),
    Rule(
        "DATA-2",
        "A state slot has the state that it is used for: the one that a request computes in, the one that keeps a page "
        "border, the one that the store takes for a prefix, and the one that a request goes on from.",
        "A slot shows no tokens: a request that goes on from the wrong one answers another prompt.",
        "17850",
    ),
    Rule(
        "CAP-1",
        "An operation is refused for lack of room exactly when it does not fit, and a refused operation changes "
        "nothing.",
        "The caller evicts, preempts or retracts as much as was missing and tries again.",
        "17850",
    ),
    Rule(
        "OP-1",
        "An operation that makes no sense in the present state is refused and changes nothing; one that does is "
        "carried out.",
        "Releasing twice, or decoding what does not run, corrupts whoever owns the memory now.",
        "994",
    ),
    Rule(
        "LIVE-1",
        "With work waiting, some operation that makes progress is always possible.",
        "Requests that hold memory and wait for more must not wait for each other.",
        "994, 20476",
    ),
)

RULES = {rule.id: rule for rule in _RULES}
"""Every rule by its id, in the order of the chapters."""
