"""The law's rules. They know pools, pages, holders and operations; no request, no session, no tree."""

from kvspec.rules import RULES, Rule

_RULES = (
    Rule(
        "MEM-TAKE",
        "Only a free page is handed out: nobody holds it, no name finds it, and it is of the pool.",
        "Two holders of one page overwrite each other's content; a page that keeps its name serves it to strangers.",
        "994, 22862",
    ),
    Rule(
        "MEM-SHARE",
        "A reference is added only to a page that is held or published, and under a key only if that key finds it.",
        "A free page is handed to somebody else at any time.",
        "20476",
    ),
    Rule(
        "MEM-RELEASE",
        "A reference is taken back, or passed on, only by a holder that has it.",
        "A double free hands one page out twice.",
        "17850, 22862",
    ),
    Rule(
        "MEM-USE",
        "Whoever reads or writes a page holds it, every position that is used has a page, and padding is not read.",
        "A stale table entry reads, or spoils, what has been given to somebody else.",
        "17850",
    ),
    Rule(
        "MEM-LEAK",
        "A holder that has left holds nothing; at idle, only keepers hold anything.",
        "What nobody will release is lost until the engine restarts.",
        "22862, 22213",
    ),
    Rule(
        "MEM-COUNT",
        "The engine's own figures, free lists and reference counts are what its events add up to.",
        "A page that is in two of its books, or in none, is lost or handed out twice.",
        "20070, 22862",
    ),
    Rule(
        "MEM-WRITTEN",
        "No slot is read that was never written since its page was handed out.",
        "What is read there belongs to a request that is gone.",
        "22862",
    ),
    Rule(
        "MEM-CONTENT",
        "A read finds the content that it means to read.",
        "Other content gives wrong tokens, and somebody else's prompt to a stranger.",
        "17850, 994",
    ),
    Rule(
        "MEM-NAME",
        "A name finds content that is there, or that somebody is left to write; one key names one content; only a name "
        "that is published is withdrawn.",
        "A later request takes what the name finds for what it promises. A name that outlives a failed load, or an "
        "aborted or preempted writer, serves what was never written.",
        "20476",
    ),
    Rule(
        "MEM-OVERWRITE",
        "What is published, or shared by two holders, is not overwritten with something else.",
        "The other reader's content changes under it.",
        "17850",
    ),
    Rule(
        "MEM-RACE",
        "Of two uses of a slot, one of them a write, one happens before the other: on one stream, by a wait, or "
        "because the host saw the first complete before it queued the second.",
        "Nothing else orders them: which comes first depends on the device's mood.",
        "17850, 994",
    ),
    Rule(
        "MEM-REWRITE",
        "A write of what is there already is ordered with the reads of it, too.",
        "The content is the same, so it is a milder race; a write that is not atomic still shows.",
        "17850",
    ),
    Rule(
        "MEM-ORDER",
        "An operation ends once, after it began; its name is not used twice in flight.",
        "A completion that was not looked for lets memory go while it is still used.",
        "17850",
    ),
    Rule(
        "MEM-DELIVER",
        "Nothing leaves the engine that was computed from what was not written, or from other content, or is not seen "
        "complete.",
        "The client gets wrong tokens.",
        "22862",
    ),
    Rule(
        "MEM-RESERVE",
        "What is promised to holders is there: free or cached pages, and nobody else takes them.",
        "A request that was admitted on a promise is stuck, or preempts others over and over.",
        "994",
    ),
    Rule(
        "MEM-FAILED",
        "The engine does not give up.",
        "An assertion, an exhausted pool with work left, or a standstill is the end of service.",
        "994",
    ),
)

MEMORY_RULES: dict[str, Rule] = {rule.id: rule for rule in _RULES}

ALL_RULES: dict[str, Rule] = {**MEMORY_RULES, **RULES}
"""The law's rules, and those of the policies above it."""
