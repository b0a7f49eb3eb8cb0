"""Announcements to routers, checked against earlier ones and against names. The cost follows the changes alone."""

from collections.abc import Iterator
from typing import NamedTuple

from kvcheck.announced import Block, Host, Tier
from kvcheck.clocks import HOSTS
from kvcheck.finding import Malformed
from kvcheck.pages import Content
from kvcheck.pools import PoolState
from kvcheck.state import State
from kvspec.memory.events import Announce, Label

TIERS = 256
"""The most tiers of a host."""

Differing = tuple[Label | None, Label | None]
"""The expected label, and the announced one."""


class Found(NamedTuple):
    """The broken case of the rule, and the block."""

    code: str
    block: str | None
    labels: Differing = (None, None)


def announce(state: State, event: Announce) -> None:
    """A host announces to routers which blocks a tier holds.

    Raises:
        Malformed: blocks are announced without a tier, or there are too many hosts or tiers.
    """
    state.checked["MEM-ANNOUNCE"] += 1
    if event.tier is None and (event.stored or event.removed or event.pool is not None):
        raise Malformed("an announcement of blocks names no tier")
    host = state.announced.get(event.host)
    if host is None:
        host = state.announced[event.host] = Host()
        if len(state.announced) > HOSTS:
            raise Malformed(f"announcements of more than {HOSTS} hosts")
    last = host.last
    for code, block, labels in _announce(state, host, event):
        found = state.find(f"MEM-ANNOUNCE/{code}", number=block)
        found.expected, found.found = labels
        if block is None:
            found.expected, found.found = last + (code == "gap"), event.batch
        else:
            found.key = event.parent if code == "orphan" else event.tier


def _announce(state: State, host: Host, event: Announce) -> Iterator[Found]:
    if event.batch is not None and (code := host.begin(event.batch)):
        yield Found(code, None)
    if host.ignored:
        return
    if event.cleared:
        host.clear(event.tier)
    if event.tier is None:
        return
    tier = host.tiers.get(event.tier)
    if tier is None:
        tier = host.tiers[event.tier] = Tier(host)
        if len(host.tiers) > TIERS:
            raise Malformed(f"a host of more than {TIERS} tiers")
    for block in event.removed:
        if not tier.forget(block) and not tier.lost:
            yield Found("not-announced", block)
    if event.stored:
        yield from _store(state, tier, event)
    if event.pool is not None:
        yield from _compare(state, tier, state.pool(event.pool))


def _store(state: State, tier: Tier, event: Announce) -> Iterator[Found]:
    """Blocks are stored, behind a parent that some tier of the host has."""
    host, tiers, parent, labels = tier.host, tier.host.tiers.values(), event.parent, event.labels
    known = parent is None or parent in tier.blocks
    if not (known or host.lost or any(one.lost or parent in one.blocks for one in tiers)):
        yield Found("orphan", event.stored[0])
    each = len(labels or ()) // len(event.stored)
    if labels is not None and (not each or len(labels) != each * len(event.stored)):
        yield Found("content", event.stored[0])
        labels = None
    for index, block in enumerate(event.stored):
        new = Block(None if labels is None else tuple(labels[index * each : (index + 1) * each]), host.gaps)
        old = tier.blocks.get(block)
        if old is not None and (differing := _differ(state, old.labels or (), new.labels or ())):
            yield Found("content", block, differing)
        elif old is not None and old.gaps == host.gaps:
            yield Found("twice", block)
        tier.store(block, new)


def _differ(state: State, old: tuple[Label, ...], new: tuple[Label, ...]) -> Differing | None:
    pairs = zip(old, new, strict=False) if old != new else ()
    return next((pair for pair in pairs if state.agree(*(Content(0, 1, one) for one in pair)) is False), None)


def _compare(state: State, tier: Tier, pool: PoolState) -> Iterator[Found]:
    """Check that the routers know exactly the names of a pool. From now on they count as doing so."""
    lost, removed = tier.lost, tier.removed
    for block in sorted(tier.compared(pool)):
        known, named = tier.blocks.get(block), block in pool.names
        code, differing = "", None
        if known is None:
            code = "" if not named else "still-found" if block in removed else "missing"
        elif not named:
            code = "" if known.unfound else "unfound"
        elif known.labels and (differing := _promised_other(state, pool, block, known.labels)):
            code = "content"
        if code and not lost:
            yield Found(code, block, differing or (None, None))
        if code:
            tier.blocks[block] = Block(None, tier.host.gaps if code == "content" else -1, code == "unfound")
        elif known is not None:
            tier.blocks[block] = known._replace(unfound=not named)
    tier.agree(lost=lost)


def _promised_other(state: State, pool: PoolState, key: str, labels: tuple[Label, ...]) -> Differing | None:
    """The content that a name promises, and other content that was announced under it; `None` if they agree."""
    meant = pool.meant(labels, 0, len(labels) * pool.unit)
    promises = [pool.seen(page).keys[key].meant for page in pool.found(key)]
    pairs = ((one, other) for promise in promises for one in promise for other in meant)
    return next(((one.label, other.label) for one, other in pairs if state.agree(one, other) is False), None)
