"""Operations of the request level as lines of a trace: the header, and answers with their pages as runs."""

from collections.abc import Callable
from typing import Any, Literal

import msgspec
from msgspec.structs import replace

from kvspec.events import Config, ExtendAnswer, Operation
from kvspec.pages import Runs, compress, count, expand

NUMBERS = 1 << 20
"""Pages, slots or positions that one part of an operation may name one by one, and pages that a request's tokens may
fill: its cost follows these. Lists of whole pools in a snapshot are compared run by run, and may have any length."""


class Header(msgspec.Struct, forbid_unknown_fields=True, omit_defaults=True):
    """The first line of a file."""

    kvspec: int
    """The version of the format."""
    producer: str
    """The producer of the file: an engine and its version, or a vector collection."""
    config: Config
    level: Literal["request"] = "request"
    """The level of the file, also if it is missing; `kvconform.levels.memory` reads the other level."""
    description: str | None = None
    """Vectors only: the scenario, and the defect that it would show."""
    rules: list[str] = []
    """Vectors only: the ids of the rules that it exercises."""
    source: str | None = None
    """Vectors only: the document that it comes from."""
    needs: list[str] = []
    """Exported vectors only: the features that an implementation needs to run it."""


def compressed(op: Operation[Any]) -> Operation[Any]:
    """A copy of the operation, with the pages and slots of its answer as runs."""
    return with_pages(op, _as_runs)


def _as_runs(runs: Runs) -> Runs:
    """The shortest runs. Lists of whole pools are already runs, and are never expanded."""
    return compress(expand(runs)) if count(runs) <= NUMBERS else runs


def with_pages(op: Operation[Any], write: Callable[[Runs], Runs]) -> Operation[Any]:
    """A copy of the operation, with each list of pages or slots of its answer converted by `write`."""
    if op.obs is None:
        return op
    lists: dict[str, Any] = {}
    for name in op.obs.__struct_fields__:
        value = getattr(op.obs, name)
        if value is None:
            continue
        if name in _LISTS:
            lists[name] = write(value)
        elif name in _LISTS_BY_NAME and not isinstance(op.obs, ExtendAnswer if name == "rows" else ()):
            lists[name] = {key: write(runs) for key, runs in value.items()}
    return replace(op, obs=replace(op.obs, **lists)) if lists else op


_LISTS = frozenset(
    {"freed", "window_freed", "states_freed", "evicted", "window_evicted", "states_evicted"}
    | {"free_pages", "store_pages", "free_states", "store_states", "free_rows", "withheld_rows"}
)
"""Parts of answers that are lists of pages or state slots."""
_LISTS_BY_NAME = frozenset({"pages", "window_pages", "states", "rows"})
"""Parts of answers that have such a list for each request, or for each row of a snapshot."""
