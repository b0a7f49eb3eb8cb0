"""Small files with extreme numbers, made from the types that read them: each field of each event, one at a time.

A *life* is a short trace in which everything is done that its memory can do. In each file one field of one line is
extreme, and the rest of the life follows. The last event cannot be right, so that there is always a
finding to shorten and to show, unless the file is refused before.
"""

import json
from collections.abc import Iterator
from typing import Any, NamedTuple

from msgspec import inspect

from kvspec.events import EVENTS, Config
from kvspec.memory.events import MemoryEvent, Pool, Use

Line = dict[str, Any]

HUGE = 2**31 - 1
"""The largest size that a configuration may have."""
MANY = 1 << 20
SOME = 1 << 16

INTEGERS = [HUGE, 2**63 - 1, 10**30, MANY, SOME, 0, -1]
STRINGS = ["", "x" * 20_000, "\u202e\x1b[31m\x07"]
RUNS: list[list[Any]] = [
    [[1, HUGE]],
    [[1, MANY]],
    [[1, SOME]],
    [[1, MANY], [MANY, MANY], [5, MANY]],
    [[1, SOME]] * 50,
    [[2 * number + 1, 1] for number in range(500)],
    [[HUGE, 2**63 - 1], [1, 0], -1],
]


def extremes(kind: inspect.Type) -> Iterator[Any]:
    """Extreme values of a type, as JSON has them."""
    match kind:
        case inspect.IntType():
            yield from INTEGERS
        case inspect.StrType():
            yield from STRINGS
        case inspect.UnionType(types=types):
            for one in types:
                yield from extremes(one)
        case inspect.ListType(item_type=item) | inspect.CollectionType(item_type=item) if _is_of_runs(item):
            yield from RUNS
        case inspect.ListType(item_type=item) | inspect.CollectionType(item_type=item):
            for value in extremes(item):
                yield [value]
                yield [value] * 50
        case inspect.TupleType(item_types=types):
            for place, one in enumerate(types):
                for value in extremes(one):
                    yield [*map(usual, types[:place]), value, *map(usual, types[place + 1 :])]
        case inspect.DictType(key_type=key, value_type=item):
            for value in extremes(item):
                yield {str(usual(key)): value}
            for name in extremes(key):
                yield {str(name): usual(item)}
        case inspect.StructType(fields=fields):
            common = {field.encode_name: usual(field.type) for field in fields if field.required}
            if kind.cls is Use:
                common = {"pool": "kv", "pages": [[1, SOME]]}
            for field in fields:
                for value in extremes(field.type):
                    yield common | {field.encode_name: value}


def usual(kind: inspect.Type) -> Any:
    """A value of a type that is nothing special."""
    match kind:
        case inspect.IntType():
            return 1
        case inspect.StrType():
            return "a"
        case inspect.UnionType(types=types):
            return usual(types[0])
        case inspect.TupleType(item_types=types):
            return [usual(one) for one in types]
        case inspect.StructType(fields=fields):
            return {field.encode_name: usual(field.type) for field in fields if field.required}
    return []


def _is_of_runs(item: inspect.Type) -> bool:
    return isinstance(item, inspect.UnionType) and any(isinstance(one, inspect.TupleType) for one in item.types)


class Life(NamedTuple):
    """A trace, and the types of its header's sizes and its lines."""

    header: Line
    sizes: type
    events: Any
    lines: list[Line]

    def files(self) -> Iterator[tuple[str, bytes]]:
        """Each name and what stands in the file."""
        for name, changed in _sized(self.header, self.sizes):
            yield f"header.{name}", written([changed, *self.lines])
        kinds = {kind.tag: kind for kind in inspect.type_info(self.events).types}  # type: ignore[attr-defined]
        seen = set()
        for place, line in enumerate(self.lines):
            if line["op"] in seen:
                continue
            seen.add(line["op"])
            for field, changed in _changed(kinds[line["op"]], line):
                lines = [self.header, *self.lines[:place], changed, *self.lines[place + 1 :]]
                yield f"{line['op']}.{field}", written(lines)


def written(lines: list[Line]) -> bytes:
    """The content of a file of these lines."""
    return "".join(json.dumps(line) + "\n" for line in lines).encode()


def _sized(header: Line, sizes: type) -> Iterator[tuple[str, Line]]:
    """The header with one size extreme."""
    for field in inspect.type_info(sizes).fields:  # type: ignore[attr-defined]
        for value in extremes(field.type):
            if sizes is Config:
                yield field.name, header | {"config": header["config"] | {field.name: value}}
            else:
                pool = header["pools"]["kv"] | {field.name: value}
                yield field.name, header | {"pools": header["pools"] | {"kv": pool}}


def _changed(kind: inspect.StructType, line: Line) -> Iterator[tuple[str, Line]]:
    """The line with one field extreme, of itself or of its answer."""
    for field in kind.fields:
        answer = _answer(field.type) if field.name == "obs" else None
        for part in answer.fields if answer is not None else ():
            for value in extremes(part.type):
                obs = ({"evicted": []} if line["op"] == "evict" else {}) | {part.encode_name: value}
                yield f"obs.{part.name}", line | {"obs": obs}
        if answer is None:
            for value in extremes(field.type):
                refused = field.name == "refused"
                yield (
                    field.name,
                    {name: old for name, old in line.items() if not (refused and name == "obs")}
                    | {field.encode_name: value},
                )


def _answer(kind: inspect.Type) -> inspect.StructType | None:
    types = kind.types if isinstance(kind, inspect.UnionType) else (kind,)
    return next((one for one in types if isinstance(one, inspect.StructType)), None)


def _operation(op: str, answer: Line | None = None, **arguments: Any) -> Line:
    return {"op": op, **arguments, "obs": answer or {}}


def _launched(number: int, *requests: str, **tokens: int) -> list[Line]:
    launched = _operation("launch", launch=number, reqs=list(requests))
    return [launched, _operation("complete", launch=number, tokens=tokens)]


def _prefilled(req: str, number: int, **submitted: Any) -> list[Line]:
    return [
        _operation("submit", req=req, tokens=[1, 2, 3], **submitted),
        _operation("match_prefix", req=req),
        _operation("extend", reqs=[[req, 3]]),
        *_launched(number, req, **{req: 4}),
    ]


_WRONG = _operation("snapshot", {"free_pages": [[5, 90]]})
_DECODED = [
    *_prefilled("a", 1),
    _operation("cache_unfinished", req="a"),
    _operation("snapshot"),
    _operation("decode", reqs=["a"], n=4),
    *_launched(2, "a"),
    _operation("verify", req="a", accepted=2, tokens=[5]),
]
_LEFT = [
    _operation("report", mode="busy"),
    _operation("retract", req="a"),
    *_prefilled("b", 3),
    _operation("abort", req="b"),
    *_prefilled("c", 4),
    _operation("finish", req="c"),
    _operation("evict", {"evicted": []}, n=0),
    _WRONG,
]
_SESSION = [
    _operation("open_session", session="s"),
    *_prefilled("a", 1, session="s"),
    _operation("finish", req="a"),
    _operation("preempt", session="s"),
    _operation("close_session", session="s"),
    _WRONG,
]
_WINDOW = [*_DECODED, _operation("swa_evict", req="a"), *_LEFT]
_STATES = [
    _operation("submit", req="z", tokens=[7, 8]),
    _operation("take_state", req="z"),
    _operation("free_state", req="z"),
    *_prefilled("a", 1),
    _operation("cache_unfinished", req="a"),
    *_LEFT,
]


def _header(**sizes: int) -> Line:
    config = {"page_size": 1, "num_pages": HUGE, "num_rows": HUGE, "max_context_len": HUGE} | sizes
    return {"kvspec": 2, "producer": "a test", "config": config}


_POOL = {"page_size": 4, "num_pages": HUGE, "label_size": 1}
_USE = {"table": "t", "start": 0, "stop": 8}
_MEMORY: list[Line] = [
    {"op": "take", "holder": "a", "pool": "kv", "pages": [1, 2]},
    {"op": "map", "table": "t", "holder": "a", "pool": "kv", "pages": [1, 2], "labels": list("abcdefgh")},
    {"op": "reserve", "holder": "a", "pool": "kv", "pages": 4},
    {"op": "begin", "id": 1, "stream": "s", "writes": [_USE]},
    {"op": "publish", "pool": "kv", "pages": [1], "keys": ["k"], "labels": list("abcd"), "planned": True},
    {"op": "share", "holder": "b", "pool": "kv", "pages": [1], "keys": ["k"]},
    {"op": "unify", "label": "a", "same": "z"},
    {"op": "begin", "id": 2, "stream": "s", "reads": [_USE]},
    {"op": "wait", "stream": "r", "id": 2},
    {"op": "deliver", "id": 2, "holder": "a"},
    {"op": "end", "id": 2},
    {"op": "transfer", "old": "b", "new": "c"},
    {"op": "unmap", "table": "t", "index": 1},
    {"op": "release", "holder": "a", "pool": "kv", "pages": [1, 2]},
    {"op": "drop", "pool": "kv", "pages": [1], "keys": ["k"]},
    {"op": "count", "pool": "kv", "free": [[2, HUGE - 1]], "held": 1, "references": {"1": 1}},
    {"op": "end_holder", "holder": "a"},
    {"op": "idle", "keepers": ["c"]},
    {"op": "failed", "kind": "stuck", "what": "nothing goes on"},
]


def _memory_header(**pool: Any) -> Line:
    return {
        "kvspec": 2,
        "level": "memory",
        "producer": "a test",
        "pools": {"kv": _POOL | pool, "disk": {"keyed": True}},
    }


LIVES = {
    "decode": Life(_header(), Config, EVENTS, [*_DECODED, *_LEFT]),
    "session": Life(_header(page_size=4), Config, EVENTS, _SESSION),
    "window": Life(_header(sliding_window=4, num_window_pages=HUGE), Config, EVENTS, _WINDOW),
    "states": Life(_header(num_states=HUGE), Config, EVENTS, _STATES),
    "memory": Life(_memory_header(), Pool, MemoryEvent, _MEMORY),
}


def files() -> Iterator[tuple[str, bytes]]:
    """Every kind of hostile file: its name, and what stands in it."""
    for life, lived in LIVES.items():
        for number, (name, content) in enumerate(lived.files()):
            yield f"{life}-{number}-{name}", content
