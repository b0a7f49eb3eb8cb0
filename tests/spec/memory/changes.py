"""Small changes of a right protocol, each of which some rule of the memory model forbids."""

import json
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec

from kvcheck import Checker, Malformed
from kvspec.memory import Pool
from kvspec.memory.events import MemoryEvent

_event: msgspec.json.Decoder[MemoryEvent] = msgspec.json.Decoder(MemoryEvent)


def rules_of(pools: dict[str, Pool], events: Sequence[MemoryEvent]) -> set[str]:
    """The rules that changes of the events break."""
    return {rule for changed in changes(events) for rule in broken(pools, changed)}


def changes(events: Sequence[MemoryEvent]) -> Iterator[list[MemoryEvent]]:
    """The events with one left out, done twice, too early, on another stream, or with another label."""
    for index, event in enumerate(events):
        before, after = [*events[:index]], [*events[index + 1 :]]
        yield before + after
        yield [*before, event, event, *after]
        yield [*before, *after[:1], event, *after[1:]]
        encoded = json.loads(msgspec.json.encode(event))
        if "stream" in encoded:
            yield [*before, _event.decode(json.dumps(encoded | {"stream": "another"})), *after]
        for other in relabelled(encoded):
            yield [*before, _event.decode(json.dumps(other)), *after]


def relabelled(encoded: Any) -> Iterator[Any]:
    """The same with one label changed."""
    items = encoded.items() if isinstance(encoded, dict) else enumerate(encoded) if isinstance(encoded, list) else ()
    for key, value in items:
        changed = [["other", *value[1:]]] if key == "labels" else relabelled(value)
        for one in changed:
            if isinstance(encoded, dict):
                yield encoded | {key: one}
            else:
                yield [*encoded[:key], one, *encoded[key + 1 :]]


def broken(pools: dict[str, Pool], events: list[MemoryEvent]) -> set[str]:
    """The rules that events break; none, where no engine can mean them."""
    checker, found = Checker(pools), set[str]()
    try:
        for event in events:
            found.update(finding.rule for finding in checker.step(event))
    except Malformed:
        return set()
    return found
