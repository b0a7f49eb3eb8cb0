"""An SGLang that uses the row of a request that has none: each use is reported, and the trace goes on."""

from contextlib import suppress
from types import SimpleNamespace
from typing import Any

import pytest
from benchmarks.late_hooks import Engine, Events, Key, attached

from kvattach.tape import Tape
from kvspec.memory.events import Failed

PAGE = 4


def publishes(engine: Engine) -> None:
    """The tree gets the slots of all rows."""
    engine.cache.insert(SimpleNamespace(key=Key([1] * PAGE), value=engine.rows.req_to_token[None, :PAGE].long()))


def writes(engine: Engine) -> None:
    """All rows are written."""
    engine.rows.write((None, slice(0, PAGE)), engine.rows.req_to_token[:PAGE].clone())


def frees(engine: Engine) -> None:
    """The allocator refuses the slots of all rows, after a hook has seen them."""
    with suppress(RuntimeError):
        engine.cache.free_kv_row(SimpleNamespace(req_pool_idx=None), 0, PAGE)


@pytest.mark.parametrize("late", [False, True], ids=["at once", "late"])
@pytest.mark.parametrize(("use", "function"), [(publishes, "insert"), (writes, "write"), (frees, "free")])
def test_a_use_of_no_row_is_reported(use: Any, function: str, late: bool) -> None:
    events, engine = Events(), Engine(2, PAGE, "cpu", prompt=2 * PAGE)
    with attached(engine, events, Tape() if late else None):
        engine.admit(1)
        use(engine)
        engine.decode()
    assert [event.at for event in events.all if isinstance(event, Failed)] == [function]
    assert not isinstance(events.all[-1], Failed)
