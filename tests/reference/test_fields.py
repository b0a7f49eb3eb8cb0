"""Fields of the reference's records have one type each, and are `None` only where that has a meaning."""

from collections import defaultdict
from collections.abc import Iterator
from random import Random
from types import NoneType
from typing import Any

import pytest
from msgspec.structs import asdict

from kvref import Manager
from kvref.launch import Launch
from kvref.request import KvRecord, Request, Run, SessionSlot
from kvref.tree_node import TreeNode
from kvspec.events import Config
from tests.reference.helpers import Traffic, carry_out
from tests.reference.test_model_agrees import CONFIGS

pytestmark = pytest.mark.slow

MAY_BE_NONE = {
    (Request, "prefix_len"),
    (Request, "slot"),
    (Request, "state"),
    (SessionSlot, "kv"),
    (SessionSlot, "turn"),
    (TreeNode, "mamba_value"),
    (TreeNode, "parent"),
}


def remembered(manager: Manager) -> Iterator[KvRecord | Launch | Request | Run | SessionSlot | TreeNode]:
    """Everything that comes and goes."""
    yield from manager.requests.values()
    yield from manager.running.values()
    yield from manager.holders.values()
    yield from manager.launches
    yield from manager.session_cache.slots.values()
    yield from (manager.tree_cache.root, *manager.tree_cache.all_nodes())


def test_fields_of_records_and_answers_have_one_type_and_are_none_only_with_a_meaning() -> None:
    types: dict[tuple[type, str], set[type]] = defaultdict(set)
    omitted: set[str] = set()
    for config in CONFIGS.values():
        manager = Manager(config)
        traffic = Traffic(Random(7), manager)
        for _ in range(300):
            op: Any = traffic.op()
            carry_out(manager, op)
            omitted.update(_omitted(op, config))
            for one in remembered(manager):
                for field in type(one).__slots__:
                    types[type(one), field].add(type(getattr(one, field)))
    assert {field for field, seen in types.items() if NoneType in seen} == MAY_BE_NONE
    assert omitted == set()
    assert {field: seen for field, seen in types.items() if len(seen - {NoneType}) != 1} == {}


def _omitted(op: Any, config: Config) -> Iterator[str]:
    """The parts of an answer that have a value for a pool that does not exist, or none for one that does."""
    for part, value in asdict(op.obs).items() if op.obs is not None else ():
        there = ("window" not in part or config.sliding_window) and ("state" not in part or config.num_states)
        if part not in ("state_cached", "state_taken", "tokens", "evicted_len") and (value is None) == bool(there):
            yield f"{type(op).__name__}.{part} of {config}"


def test_a_run_waits_for_what_is_prepared_and_not_for_more() -> None:
    for config in CONFIGS.values():
        manager = Manager(config)
        traffic = Traffic(Random(9), manager)
        for _ in range(300):
            carry_out(manager, traffic.op())
            for run in manager.running.values():
                assert run.prepared_end or not run.drafts
                assert run.mid_prefill == (run.name in manager.chunked)
                assert 0 <= run.verifiable <= len(run.unverified) <= 2


def test_a_slot_lends_what_it_has_to_its_turn() -> None:
    for config in CONFIGS.values():
        manager = Manager(config)
        traffic = Traffic(Random(8), manager)
        for _ in range(300):
            carry_out(manager, traffic.op())
            for slot in manager.session_cache.slots.values():
                assert slot.lent == (slot.kv is not None and manager.holders.get(slot.turn or "") is slot.kv)
