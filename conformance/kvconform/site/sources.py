"""The source documents: pull requests of engines, and the page that links each to its rules, defects and vectors."""

from collections import defaultdict

from kvconform.gallery.mutants import BUGS
from kvconform.site.pages import Page, folded, named, pull_request, rule_link
from kvconform.vectors.files import read_vectors
from kvspec.rules import ALL_RULES

SAYS = {
    "994": "Paged KV, chunked prefill and retract in sglang-jax: what is kept between chunks, which duplicates "
    "are freed at the end, what a retract gives back, and one chunked request for each data-parallel "
    "rank.",
    "17850": "A race on rows of req_to_token under overlap: a row goes to the next request while a launch in "
    "flight still reads it; rows that chunks keep, rows of batches that are refused, state slots.",
    "20070": "Streaming sessions with pages larger than a token: protected lengths are whole pages, and what "
    "sliding windows and MLA caches do with them.",
    "20476": "Chunked prefill in streaming sessions: one chunked request in a batch, a match that may be repeated, "
    "and locks that were never given back.",
    "21875": "A session that is closed while its turn is in flight is released when that turn ends.",
    "22213": "A busy check counted a turn's memory as its session's, too.",
    "22790": "A turn that is aborted before it ran leaves its session's memory as it was.",
    "22862": "The tail of a session: what was allocated past the committed tokens is freed before the next turn "
    "overwrites it.",
    "28754": "Speculative steps that are prepared before the last one is verified: which positions they count.",
    "24718": "Events for routers of a cache with sliding windows: which blocks are stored, split and evicted.",
    "33442": "Ranks of one engine that decide differently: they are whole pages apart, and wait for each other.",
}
"""The subject of each pull request, in a sentence."""


def sources_page() -> Page:
    """Each pull request that a rule, a defect or a vector comes from, under its heading."""
    known: defaultdict[str, dict[str, list[str]]] = defaultdict(lambda: defaultdict(list))
    for rule in ALL_RULES.values():
        for number in rule.origin.split(", "):
            known[number]["rules"].append(rule_link(rule.id))
    for bug in BUGS.values():
        for number in bug.source:
            known[number]["defects"].append(f"[{bug.name}](defects/{bug.name}.md)")
    for vector in read_vectors():
        for number in (vector.header.source or "").split(", "):
            known[number]["vectors"].append(f"[{vector.name}](vectors/{vector.name}.md)")
    lines = [
        "# Sources",
        "",
        "The pull requests that rules, defects and vectors come from.",
        "[Behaviours](behaviours.md) goes through them statement by statement.",
    ]
    for number in sorted(filter(None, known), key=int):
        lines += ["", f"## {named(number)}", "", f"{pull_request(number)}. {SAYS[number]}", ""]
        lines += [f"- {kind}: {folded(what, kind)}" for kind, what in known[number].items()]
    return Page("sources.md", "Sources", "\n".join(lines) + "\n")
