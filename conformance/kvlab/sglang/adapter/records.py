"""The older names of fields that newer SGLang keeps in the record of a request or a session's slot (`req.kv`)."""

import dataclasses
from typing import Any

RECORD = {
    "req_pool_idx": None,
    "cache_protected_len": 0,
    "kv_committed_len": 0,
    "kv_allocated_len": 0,
    "swa_evicted_seqlen": 0,
    "mamba_pool_idx": None,
    "mamba_ping_pong_track_buffer": None,
    "mamba_next_track_idx": None,
    "mamba_last_track_seqlen": None,
}
"""Attribute -> its value without a record. Newer releases keep it in `req.kv`, older ones in request and slot."""


def name_as_before(record: type, *owners: type) -> None:
    """Give requests and slots the older names of the fields of their record."""
    known = {field.name for field in dataclasses.fields(record)}
    for owner in owners:
        for name in RECORD.keys() & known:
            setattr(owner, name, _of_record(name))


CURSOR = "swa_evicted_seqlen"
"""The older name of a window's cursor."""


def window_in_components(record: type, window: Any, *owners: type) -> None:
    """Give requests and slots the older name of the window's cursor, which records keep by component."""
    if hasattr(record, "get_evicted_seqlen"):
        for owner in owners:
            setattr(owner, CURSOR, property(lambda holder: holder.kv.get_evicted_seqlen(window)))


def _of_record(name: str) -> property:
    def get(holder: Any) -> Any:
        return RECORD[name] if holder.kv is None else getattr(holder.kv, name)

    def put(holder: Any, value: Any) -> None:
        setattr(holder.kv, name, value)

    return property(get, put)
