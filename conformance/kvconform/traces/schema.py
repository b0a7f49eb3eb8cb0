"""The trace and vector formats of both levels as one JSON Schema, generated from the types that read them."""

from typing import Any

import msgspec

from kvconform.traces.expect import Expect
from kvconform.traces.memory import ExpectFinding
from kvspec.events import EVENTS
from kvspec.memory.events import MemoryEvent
from kvtrace.header import MemoryHeader
from kvtrace.operations import Header

_LEVELS = {
    "Request level: in a trace every line after the header is an operation with its answer (obs) or its refusal "
    "(refused). In a vector operations have neither, and an expect line may follow each.": (
        Header,
        EVENTS,
        Expect,
    ),
    "Memory level: every line after the header is an event. In a vector expect lines name the findings of the event "
    "before them.": (MemoryHeader, MemoryEvent, ExpectFinding),
}


def schema() -> dict[str, Any]:
    """A JSON Schema (2020-12) that each line of a trace or vector satisfies."""
    types = [one for level in _LEVELS.values() for one in level]
    schemas, definitions = msgspec.json.schema_components(types)
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kvspec trace or vector, line by line",
        "description": "JSON Lines. Line 1 is a header; its level says which lines follow.",
        "anyOf": [
            {"description": description, "anyOf": list(schemas[3 * number : 3 * number + 3])}
            for number, description in enumerate(_LEVELS)
        ],
        "$defs": definitions,
    }
