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
    """A file without it is of this level; `kvconform.levels.memory` reads the other one."""
    description: str | None = None
    """Vectors only: what happens here and what would go wrong."""
    rules: list[str] = []
    """Vectors only: the ids of the rules that it exercises."""
    source: str | None = None
    """Vectors only: the document that it comes from."""
    needs: list[str] = []
    """Exported vectors only: the features that an implementation needs to run it."""


def compressed(op: Operation[Any]) -> Operation[Any]:
    """The same operation, with the pages and slots of its answer as runs. `op` stays as it is."""
    return with_pages(op, _as_runs)


def _as_runs(runs: Runs) -> Runs:
    """Runs as short as they get. Lists of whole pools are runs already, and are never expanded."""
    return compress(expand(runs)) if count(runs) <= NUMBERS else runs


def with_pages(op: Operation[Any], write: Callable[[Runs], Runs]) -> Operation[Any]:
    """The same operation, with each list of pages or slots of its answer written as `write` does it."""
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
"""Parts of answers that are a list of pages or state slots."""
_LISTS_BY_NAME = frozenset({"pages", "window_pages", "states", "rows"})
"""Parts of answers that are such a list for each request, or for each row of a snapshot."""
