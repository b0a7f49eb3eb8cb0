"""The trace and vector format as a JSON Schema, generated from the types that read it."""

from typing import Any

import msgspec

from kvconform.traces.codec import Header
from kvconform.traces.expect import Expect
from kvspec.events import Event


def schema() -> dict[str, Any]:
    """A JSON Schema (2020-12) that each line of a trace or vector satisfies."""
    (header, event, expect), definitions = msgspec.json.schema_components([Header, Event, Expect])
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "kvspec trace or vector, line by line",
        "description": "JSON Lines. Line 1 is a header. In a trace every other line is an operation with its answer "
        "(obs) or its refusal (refused). In a vector operations have neither, and an expect line may follow each.",
        "anyOf": [header, event, expect],
        "$defs": definitions,
    }
