"""Findings of the memory level in words, one sentence each without its full stop."""

from collections.abc import Callable

from kvcheck.finding import SHOWN, Finding, Owners

LONGEST = 400
"""Characters of a sentence: a name may be as long as a line."""

_UNORDERED = "nothing orders them"


def describe(finding: Finding) -> str:
    """The finding in one sentence."""
    words = _SENTENCES[finding.code](finding)
    return words if len(words) <= LONGEST else f"{words[: LONGEST - 55]} ... {words[-50:]}"


def _page(finding: Finding) -> str:
    return f"{'key' if finding.keyed else 'page'} {finding.page}"


def _owned(owners: Owners | None) -> str:
    """The owners of a page in words."""
    holders, total, key = owners or Owners((), 0, None)
    if holders:
        return f"{', '.join(holders)}{', ...' * (total > len(holders))} hold{'s' * (total == 1)} it"
    return "it has no holder" if key is None else f"key {key} finds it"


def _named(finding: Finding) -> str:
    """The key that finds a page, or its holders, in words."""
    key = None if finding.owners is None else finding.owners.key
    return _owned(finding.owners) if key is None else f"key {key} finds it"


def _listed(finding: Finding, total: int) -> str:
    return ", ".join(map(str, finding.pages)) + ", ..." * (total > SHOWN)


def _whom(finding: Finding) -> str:
    return "" if finding.holder is None else f" for {finding.holder}"


def _lacks(finding: Finding) -> int:
    assert isinstance(finding.expected, int) and isinstance(finding.found, int)
    return finding.expected - finding.found


def _leak(finding: Finding, why: str) -> str:
    assert isinstance(finding.found, int)
    pages = f"{finding.found} page(s) of {finding.pool}: {_listed(finding, finding.found)}"
    return f"{finding.holder} {why} and still holds {pages}"


def _shifted(finding: Finding) -> str:
    expected, found = finding.offsets or (0, 0)
    label = finding.found
    means = f"operation {finding.operation} means to read slot {expected} of {label} in {_page(finding)}"
    return f"{means} and finds slot {found} of {label}"


def _race(finding: Finding, does: str) -> str:
    other = f"which stream {finding.stream} {finding.did}: {_UNORDERED}"
    return f"operation {finding.operation} {does} {_page(finding)}, {other}"


def _unnamed(finding: Finding) -> str:
    key = "" if finding.key is None else f" as key {finding.key}"
    return f"{_page(finding)} is not published{key}, but the name is withdrawn"


def _host(finding: Finding, index: int) -> str:
    name = (finding.hosts or (None, None))[index]
    return "a host without a name" if name is None else f"host {name}"


def _tier(finding: Finding) -> str:
    return "" if finding.key is None else f" in {finding.key}"


def _computed(finding: Finding) -> str:
    return f"what operation {finding.operation} computed for {finding.holder} is delivered"


_SENTENCES: dict[str, Callable[[Finding], str]] = {
    "MEM-TAKE/padding": lambda f: f"page {f.page} is handed out, but is padding",
    "MEM-TAKE/unknown": lambda f: f"page {f.page} is handed out, but does not exist",
    "MEM-TAKE/held": lambda f: f"page {f.page} is handed out, but {_owned(f.owners)}",
    "MEM-TAKE/cached": lambda f: f"page {f.page} is handed out, but {_owned(f.owners)}",
    "MEM-SHARE/free": lambda f: f"page {f.page} is shared, but it is free",
    "MEM-SHARE/unnamed": lambda f: f"page {f.page} is shared, but key {f.key} does not find it",
    "MEM-RELEASE/not-held": lambda f: f"page {f.page} is released by {f.holder}, but {_owned(f.owners)}",
    "MEM-RELEASE/transfer": lambda f: f"page {f.page} is passed on by {f.holder}, but {_owned(f.owners)}",
    "MEM-LEAK/ended": lambda f: _leak(f, "has left"),
    "MEM-LEAK/idle": lambda f: _leak(f, "is no keeper at idle"),
    "MEM-RESERVE/exceeded": lambda f: f"{f.found} pages of {f.pool} are promised, {f.expected} are left",
    "MEM-COUNT/twice": lambda f: f"page {f.page} is twice in the list of {f.figure} pages",
    "MEM-COUNT/listed": lambda f: f"page {f.page} is in the list of {f.figure} pages, but {_owned(f.owners)}",
    "MEM-COUNT/missing": lambda f: (
        f"{_lacks(f)} page(s) of {f.pool} are missing in the list of {f.figure} pages: {_listed(f, _lacks(f))}"
    ),
    "MEM-COUNT/total": lambda f: f"{f.found} pages of {f.pool} are counted as {f.figure}, but there are {f.expected}",
    "MEM-COUNT/references": lambda f: f"page {f.page} is counted with {f.found} references, but {_owned(f.owners)}",
    "MEM-FAILED/assertion": lambda f: f"assertion: {f.message}",
    "MEM-FAILED/exhausted": lambda f: f"exhausted: {f.message}",
    "MEM-FAILED/stuck": lambda f: f"stuck: {f.message}",
    "MEM-NAME/free": lambda f: f"page {f.page} is published as key {f.key}, but it is free",
    "MEM-NAME/ambiguous": lambda f: f"key {f.key} names two contents, in pages {f.pages[0]} and {f.page}",
    "MEM-NAME/unnamed": _unnamed,
    "MEM-NAME/unwritten": lambda f: f"key {f.key} finds {_page(f)}, but slot {f.slot} was never written",
    "MEM-NAME/content": lambda f: f"key {f.key} finds {_page(f)}, but that holds {f.found} from slot {f.slot} on",
    "MEM-USE/no-table": lambda f: f"table {f.table} is used, but it names no page",
    "MEM-USE/no-page": lambda f: f"position {f.slot} of {f.table or 'the pages'} has no page",
    "MEM-USE/padding": lambda f: f"operation {f.operation} reads padding page {f.page}",
    "MEM-USE/not-held": lambda f: f"operation {f.operation} uses {_page(f)}{_whom(f)}, but {_owned(f.owners)}",
    "MEM-WRITTEN/unwritten": lambda f: (
        f"operation {f.operation} reads slot {f.slot} of {_page(f)}, never written since it was handed out"
    ),
    "MEM-CONTENT/other": lambda f: (
        f"operation {f.operation} means to read {f.expected} in {_page(f)} and finds {f.found}"
    ),
    "MEM-CONTENT/shifted": _shifted,
    "MEM-OVERWRITE/content": lambda f: (
        f"operation {f.operation} overwrites {_page(f)} from slot {f.slot} on, but {_named(f)}"
    ),
    "MEM-OVERWRITE/unwritten": lambda f: (
        f"operation {f.operation} overwrites {_page(f)} from slot {f.slot} on with what was never written"
    ),
    "MEM-RACE/read": lambda f: _race(f, "reads"),
    "MEM-RACE/write": lambda f: _race(f, "writes"),
    "MEM-RACE/itself": lambda f: (
        f"operation {f.operation} writes {f.expected} and {f.found} to slots of {_page(f)}: {_UNORDERED}"
    ),
    "MEM-REWRITE/write": lambda f: _race(f, "writes"),
    "MEM-ORDER/begun-again": lambda f: f"operation {f.operation} is begun again while it is in flight",
    "MEM-ORDER/not-in-flight": lambda f: f"operation {f.operation} is taken for complete, but is not in flight",
    "MEM-AGREE/differs": lambda f: (
        f"{_host(f, 0)} of group {f.group} decides {f.found}, but {_host(f, 1)} decided {f.expected} there"
    ),
    "MEM-AGREE/missing": lambda f: (
        f"{_host(f, 0)} of group {f.group} has not decided {f.expected}, but {_host(f, 1)} has, and all is idle"
    ),
    "MEM-ANNOUNCE/unfound": lambda f: f"block {f.page} is announced{_tier(f)}, but no name finds it",
    "MEM-ANNOUNCE/missing": lambda f: f"a name finds block {f.page}, which is not announced{_tier(f)}",
    "MEM-ANNOUNCE/still-found": lambda f: f"block {f.page} is announced to be removed{_tier(f)}, but a name finds it",
    "MEM-ANNOUNCE/orphan": lambda f: f"block {f.page} is announced behind block {f.key}, which is not announced",
    "MEM-ANNOUNCE/content": lambda f: (
        f"block {f.page} is announced{_tier(f)} with other content than it has"
        + ("" if f.found is None else f": {f.found}, and not {f.expected}")
    ),
    "MEM-ANNOUNCE/twice": lambda f: f"block {f.page} is announced{_tier(f)} once more",
    "MEM-ANNOUNCE/not-announced": lambda f: (
        f"block {f.page} is announced to be removed{_tier(f)}, but is not announced there"
    ),
    "MEM-ANNOUNCE/gap": lambda f: f"the announcements before batch {f.found} are missing, from batch {f.expected} on",
    "MEM-ANNOUNCE/again": lambda f: f"batch {f.found} of the announcements comes again",
    "MEM-ANNOUNCE/late": lambda f: f"batch {f.found} of the announcements comes after batch {f.expected}",
    "MEM-DELIVER/not-begun": lambda f: f"{_computed(f)} before it is begun",
    "MEM-DELIVER/incomplete": lambda f: f"{_computed(f)} before it is seen complete",
    "MEM-DELIVER/tainted": lambda f: f"{_computed(f)}, but what it read was not there",
}
"""A sentence for each code of the memory model."""
