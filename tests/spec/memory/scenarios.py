"""Events for a memory checker: scenarios that break a rule once, the same done right, and malformed ones."""

from collections.abc import Callable
from typing import Any

from kvspec.memory import Pool
from kvspec.memory.events import (
    Announce,
    Begin,
    Count,
    Decide,
    Deliver,
    Drop,
    End,
    EndHolder,
    Event,
    Failed,
    Idle,
    Map,
    Publish,
    Receive,
    Release,
    Reserve,
    Send,
    Share,
    Take,
    Transfer,
    Unify,
    Unmap,
    Use,
    Wait,
)

Found = Callable[..., list[tuple[str, int]]]
"""Of events, one after the other: rule and event number of each finding."""

POOLS = {
    "kv": Pool(page_size=4, num_pages=8, padding=[8]),
    "rows": Pool(page_size=16, label_size=4),
    "disk": Pool(keyed=True),
}


def take(holder: str, *pages: int | tuple[int, int]) -> Take:
    return Take(holder, "kv", list(pages))


def of(holder: str | None, *pages: int, label: str | None = None, start: int = 0, stop: int = 0) -> Use:
    return Use(
        pool="kv", pages=list(pages), holder=holder, labels=None if label is None else [label], start=start, stop=stop
    )


def write(id: int, holder: str, page: int, label: str | None = None, stream: str | None = "s") -> Begin:
    return Begin(id, stream, writes=[of(holder, page, label=label)])


def read(id: int, holder: str, page: int, label: str | None = None, stream: str | None = "s") -> Begin:
    return Begin(id, stream, reads=[of(holder, page, label=label)])


def pushed(id: int, page: int) -> Begin:
    """Host p writes to a page of `a` over the network."""
    return Begin(id, "push", writes=[of("a", page)], host="p")


def used_by_d(id: int, page: int) -> Begin:
    """Host d reads a page of `a` on its own stream."""
    return Begin(id, "s", reads=[of("a", page)], host="d")


BOTH: list[Event] = [Receive("hello", host="p"), Receive("hello", host="d"), take("a", 1, 2)]
"""Two hosts, and a holder."""


def decided(host: str, *what: str) -> list[Event]:
    """Decisions of one rank of group tp, one after the other."""
    return [Decide("tp", one, host=host) for one in what]


def stored(*blocks: str, **more: Any) -> Announce:
    """Blocks of tier gpu, one behind the other."""
    return Announce("gpu", [*blocks], **more)


def removed(*blocks: str, **more: Any) -> Announce:
    """Blocks of tier gpu."""
    return Announce("gpu", removed=[*blocks], **more)


ALL = Announce("gpu", pool="kv")
"""Routers know all names."""
KEYS: list[Event] = [
    take("a", 1, 2),
    write(1, "a", 1, "x"),
    write(2, "a", 2, "y"),
    Publish("kv", [1, 2], ["k", "l"], ["x", "y"]),
]
"""Pages 1 and 2 can be found as k and l."""


def table(name: str, holder: str, *pages: int, labels: list[str] | None = None) -> Map:
    return Map(name, holder, "kv", 0, list(pages), labels)


def mapped(holder: str, *pages: int) -> list[Event]:
    """Pages that a table t names, all written."""
    return [take(holder, *pages), table("t", holder, *pages), Begin(1, "s", writes=[Use("t")])]


def copy(id: int, source: Use, target: Use) -> Begin:
    return Begin(id, "s", copies=[(source, target)])


def plan(writer: str) -> Publish:
    return Publish("kv", [1], ["k"], ["x"], planned=True, writer=writer)


PAIRS = [(of("a", 1), of("a", 2)), (of("a", 2), of("a", 1))]
"""Pages 1 and 2 change places, reported as two copies."""


BROKEN: dict[str, tuple[list[Event], tuple[str, int]]] = {
    "copied back what was copied there": (
        [
            take("a", 1, 2),
            write(1, "a", 1, "x"),
            write(2, "a", 2, "y"),
            Begin(3, "s", copies=PAIRS),
            read(4, "a", 1, "y"),
        ],
        ("MEM-CONTENT/other", 5),
    ),
    "read one slot further on": (
        [
            take("a", 1, 2),
            write(1, "a", 1, "x"),
            copy(2, of("a", 1, stop=3), of("a", 2, start=1)),
            Begin(3, "s", [of("a", 2, start=1, stop=4, label="x")]),
        ],
        ("MEM-CONTENT/shifted", 4),
    ),
    "padding read that a table names": (
        [take("a", 1), table("t", "a", 1, 8), Begin(1, "s", writes=[Use("t")]), Begin(2, "s", [Use("t", stop=8)])],
        ("MEM-USE/padding", 4),
    ),
    "delivered, and looked at later": (
        [take("a", 1), write(1, "a", 1), Deliver(1, "a"), End(1)],
        ("MEM-DELIVER/incomplete", 4),
    ),
    "delivered before it is begun": (
        [take("a", 1), Deliver(1, "a"), write(1, "a", 1), End(1)],
        ("MEM-DELIVER/not-begun", 2),
    ),
    "delivered by another host before it is begun": (
        [
            *[take("a", 1), Begin("p/1", "s", writes=[of("a", 1)], host="p"), End("p/1", host="p")],
            *[Begin("d/2", "s", [of("a", 1)], host="d"), End("d/2", host="d")],
            *[Deliver(id, "a", host="d") for id in ("d/2", "p/2")],
        ],
        ("MEM-DELIVER/not-begun", 7),
    ),
    "seen complete by another host": (
        [*BOTH, pushed(1, 1), End(1, host="p"), used_by_d(2, 1)],
        ("MEM-RACE/read", 6),
    ),
    "a message that was sent too early": (
        [*BOTH, pushed(1, 1), Send("m", host="p"), End(1, host="p"), Receive("m", host="d"), used_by_d(2, 1)],
        ("MEM-RACE/read", 8),
    ),
    "a message that another host received": (
        [*BOTH, pushed(1, 1), Send("m", [1], host="p"), Receive("m", host="p"), End(1, host="p"), used_by_d(2, 1)],
        ("MEM-RACE/read", 8),
    ),
    "a message that goes out with another transfer": (
        [*BOTH, pushed(1, 1), Begin(2, "other"), Send("m", [2], host="p"), Receive("m", host="d"), used_by_d(3, 1)],
        ("MEM-RACE/read", 8),
    ),
    "handed on to another host's transfer": (
        [*BOTH, Begin(1, "s", writes=[of("a", 1)], host="d"), End(1, host="d"), pushed(2, 1)],
        ("MEM-RACE/write", 6),
    ),
    "done at once on another host": (
        [*BOTH, Begin(1, "host", writes=[of("a", 1)], host="p"), used_by_d(2, 1)],
        ("MEM-RACE/read", 5),
    ),
    "delivered by a host that has not seen it": (
        [*BOTH, pushed(1, 1), End(1, host="p"), Deliver(1, "a", host="d")],
        ("MEM-DELIVER/incomplete", 6),
    ),
    "ended twice for one host": (
        [*BOTH, pushed(1, 1), End(1, host="p"), End(1, host="p"), End(1, host="d")],
        ("MEM-ORDER/not-in-flight", 6),
    ),
    "ranks differ by a page": (
        [*decided("p", "match r1 8", "load 2"), *decided("d", "match r1 8", "load 1", "load 1")],
        ("MEM-AGREE/differs", 4),
    ),
    "one of three ranks differs": (
        [*decided("p", "x", "y"), *decided("d", "x", "z"), *decided("e", "x", "y"), *decided("d", "y", "x"), Idle()],
        ("MEM-AGREE/differs", 4),
    ),
    "a rank that comes later differs from the beginning": (
        [*decided("p", "x", "y"), *decided("d", "x", "y"), *decided("e", "y", "y")],
        ("MEM-AGREE/differs", 5),
    ),
    "a block is announced that no name finds": ([*KEYS, stored("k", "l", "m", pool="kv")], ("MEM-ANNOUNCE/unfound", 5)),
    "a name is withdrawn and its block stays announced": (
        [*KEYS, stored("k", "l", pool="kv"), Drop("kv", [2]), ALL, removed("l"), stored("l")],
        ("MEM-ANNOUNCE/unfound", 7),
    ),
    "a name finds a block that was not announced": ([*KEYS, stored("k", pool="kv")], ("MEM-ANNOUNCE/missing", 5)),
    "a block is removed of which a copy is left": (
        [
            *[
                take("a", 1, 2),
                write(1, "a", 1, "x"),
                write(2, "a", 2, "x"),
                Publish("kv", [1, 2], ["k", "k"], ["x", "x"]),
            ],
            *[stored("k", pool="kv"), Drop("kv", [2], ["k"]), removed("k", pool="kv"), ALL],
        ],
        ("MEM-ANNOUNCE/still-found", 7),
    ),
    "a block is announced behind one that is not": (
        [stored("k"), stored("m", parent="l"), Announce("cpu", ["l"], "m")],
        ("MEM-ANNOUNCE/orphan", 2),
    ),
    "a block is announced with another content than its name promises": (
        [*KEYS, stored("k", "l", labels=["x", "z"], pool="kv"), ALL],
        ("MEM-ANNOUNCE/content", 5),
    ),
    "a block is announced with two contents": (
        [
            stored("k", labels=["x"]),
            Announce("cpu", ["k"], labels=["y"]),
            removed("k"),
            stored("k", labels=["y"]),
            stored("k", labels=["x"]),
        ],
        ("MEM-ANNOUNCE/content", 5),
    ),
    "a block is announced with contents that do not fit": (
        [stored("k", "l", labels=["x", "y", "z"])],
        ("MEM-ANNOUNCE/content", 1),
    ),
    "a block is announced twice": ([stored("k"), removed("k"), stored("k"), stored("k")], ("MEM-ANNOUNCE/twice", 4)),
    "a block is removed after all were cleared": (
        [
            stored("k"),
            Announce("cpu", ["l"]),
            Announce("gpu", cleared=True),
            Announce("cpu", removed=["l"]),
            removed("k"),
        ],
        ("MEM-ANNOUNCE/not-announced", 5),
    ),
    "a batch of announcements is missing": (
        [stored("k", batch=0), stored("l", batch=2), removed("m"), stored("m", parent="z"), stored("k")],
        ("MEM-ANNOUNCE/gap", 2),
    ),
    "a batch of announcements comes twice": (
        [stored("k", batch=0), stored("l", batch=1), stored("l", batch=1), removed("x"), removed("k", "l", batch=2)],
        ("MEM-ANNOUNCE/again", 3),
    ),
    "a batch of announcements comes after the next one": (
        [stored("k", batch=3), stored("l", batch=2), removed("l"), removed("k", batch=4)],
        ("MEM-ANNOUNCE/late", 2),
    ),
    "a rank does not decide all that another one did": (
        [*decided("p", "x", "y"), *decided("d", "x"), Idle(pools=["kv"]), Idle(), *decided("d", "z"), Idle()],
        ("MEM-AGREE/missing", 5),
    ),
    "taken twice": ([take("a", 1), take("b", 1)], ("MEM-TAKE/held", 2)),
    "taken twice at once": ([take("a", 1, 1)], ("MEM-TAKE/held", 1)),
    "taken while published": (
        [take("a", 1), write(1, "a", 1), Publish("kv", [1], ["k"]), Release("a", "kv", [1]), take("b", 1)],
        ("MEM-TAKE/cached", 5),
    ),
    "out of range": ([take("a", 9)], ("MEM-TAKE/unknown", 1)),
    "padding taken": ([take("a", 8)], ("MEM-TAKE/padding", 1)),
    "free page shared": ([Share("a", "kv", [1])], ("MEM-SHARE/free", 1)),
    "shared under another key": (
        [take("a", 1), write(1, "a", 1), Publish("kv", [1], ["k"]), Share("b", "kv", [1], ["other"])],
        ("MEM-SHARE/unnamed", 4),
    ),
    "freed twice": ([take("a", 1), Release("a", "kv", [1]), Release("a", "kv", [1])], ("MEM-RELEASE/not-held", 3)),
    "passed on by a stranger": ([take("a", 1), Transfer("b", "c", "kv", [1])], ("MEM-RELEASE/transfer", 2)),
    "used by a stranger": ([take("a", 1), write(1, "b", 1)], ("MEM-USE/not-held", 2)),
    "read by a stranger": ([take("a", 1), write(1, "a", 1), read(2, "b", 1)], ("MEM-USE/not-held", 3)),
    "used by no known holder, free": ([Begin(1, "s", writes=[of(None, 1)])], ("MEM-USE/not-held", 1)),
    "used through a stale table": (
        [take("a", 1), table("t", "a", 1), Release("a", "kv", [1]), Begin(1, "s", writes=[Use(table="t")])],
        ("MEM-USE/not-held", 4),
    ),
    "a hole": (
        [take("a", 1), table("t", "a", 1), Begin(1, "s", writes=[Use(table="t", stop=5)])],
        ("MEM-USE/no-page", 3),
    ),
    "no table": ([Begin(1, "s", writes=[Use(table="t", stop=5)])], ("MEM-USE/no-table", 1)),
    "padding read": ([Begin(1, "s", reads=[of("a", 8)])], ("MEM-USE/padding", 1)),
    "padding in a table, read twice and found once": (
        [take("a", 1), table("t", "a", 8, 1), write(1, "a", 1), Begin(2, "s", [Use("t")]), Begin(3, "s", [Use("t")])],
        ("MEM-USE/padding", 4),
    ),
    "left with a page": ([take("a", 1), EndHolder("a")], ("MEM-LEAK/ended", 2)),
    "no keeper at idle": ([take("a", 1), Idle(["b"])], ("MEM-LEAK/idle", 2)),
    "a free page missing": ([take("a", 1), Count("kv", free=5)], ("MEM-COUNT/total", 2)),
    "a free page missing in the list": ([take("a", 1), Count("kv", free=[2, (4, 4)])], ("MEM-COUNT/missing", 2)),
    "held and in the free list": ([take("a", 1), Count("kv", free=[(1, 7)])], ("MEM-COUNT/listed", 2)),
    "held and at the beginning of a run of free pages": (
        [take("a", 3), Count("kv", free=[(1, 2), (3, 5)])],
        ("MEM-COUNT/listed", 2),
    ),
    "a cached page missing in the list": (
        [
            *[take("a", 1, 2, 3), write(1, "a", 2, "x"), Publish("kv", [2], ["k"], ["x"]), Release("a", "kv", [2, 3])],
            Count("kv", cached=[(5, 0)]),
        ],
        ("MEM-COUNT/missing", 5),
    ),
    "held pages missing in the list": ([take("a", 5, (2, 2), 1), Count("kv", held=[1, 3])], ("MEM-COUNT/missing", 2)),
    "twice in the free list": ([take("a", 1), Count("kv", free=[(2, 6), 3])], ("MEM-COUNT/twice", 2)),
    "a reference too many": ([take("a", 1), Count("kv", references={1: 2})], ("MEM-COUNT/references", 2)),
    "read before written": ([take("a", 1), read(1, "a", 1)], ("MEM-WRITTEN/unwritten", 2)),
    "read after handed out again": (
        [take("a", 1), write(1, "a", 1), Release("a", "kv", [1]), take("a", 1), read(2, "a", 1)],
        ("MEM-WRITTEN/unwritten", 5),
    ),
    "a state read before it is written": (
        [take("a", 1), Begin(1, "s", [of("a", 1)], [of("a", 1)], reads_own_writes=False)],
        ("MEM-WRITTEN/unwritten", 2),
    ),
    "delivered before it is complete": (
        [take("a", 1), write(1, "a", 1), End(1), read(2, "a", 1), Deliver(2, "a")],
        ("MEM-DELIVER/incomplete", 5),
    ),
    "a hole before what the stream has looked at": (
        [
            take("a", 1, 2),
            table("t", "a", 1, 2),
            Begin(1, "s", writes=[Use("t", start=4, stop=8)]),
            Unmap("t", 0, 1),
            Begin(2, "s", [Use("t", start=3, stop=8)]),
        ],
        ("MEM-USE/no-page", 5),
    ),
    "before the first slot": (
        [take("a", 1), Begin(1, "s", writes=[of("a", 1, start=-3, stop=2)])],
        ("MEM-USE/no-page", 2),
    ),
    "before the first position": (
        [*mapped("a", 1, 2), Begin(2, "s", [Use("t", start=-1, stop=1)]), Begin(3, "s", [Use("t", stop=8)])],
        ("MEM-USE/no-page", 4),
    ),
    "before the first position, with labels": (
        [
            *mapped("a", 1, 2),
            Begin(2, "s", writes=[Use("t", start=-4, stop=4, labels=["w", "x"])]),
            Begin(3, "s", [Use("t", stop=4, labels=["x"])]),
            Begin(4, "s", [Use("t", stop=8)]),
        ],
        ("MEM-USE/no-page", 4),
    ),
    "two parallel writes with two contents": (
        [take("a", 1), Begin(1, "s", writes=[of("a", 1, label="x"), of("a", 1, label="y")])],
        ("MEM-RACE/itself", 2),
    ),
    "a page twice in one use": (
        [take("a", 1), Begin(1, "s", writes=[Use(pool="kv", pages=[1, 1], labels=["x", "y"], holder="a")])],
        ("MEM-RACE/itself", 2),
    ),
    "a page twice in a table": (
        [take("a", 1), table("t", "a", 1, 1, labels=["x", "y"]), Begin(1, "s", writes=[Use("t")])],
        ("MEM-RACE/itself", 3),
    ),
    "a write beside the one of the table": (
        [
            *[take("a", 1), table("t", "a", 1, labels=["x"]), Begin(1, "s", writes=[Use("t", stop=1)])],
            Begin(2, "s", writes=[Use("t", start=1, stop=2), of("a", 1, label="y", start=1, stop=2)]),
        ],
        ("MEM-RACE/itself", 4),
    ),
    "two contents over what was there": (
        [take("a", 1), write(1, "a", 1, "w"), Begin(2, "s", writes=[of("a", 1, label="x"), of("a", 1, label="y")])],
        ("MEM-RACE/itself", 3),
    ),
    "half a page means something else": (
        [
            *[take("a", 1), table("t", "a", 1, labels=["x"]), Begin(1, "s", writes=[Use("t", stop=2)])],
            Begin(2, "s", writes=[Use("t", start=2, stop=4, labels=["y"])]),
            Begin(3, "s", [Use("t", stop=4)]),
        ],
        ("MEM-CONTENT/other", 5),
    ),
    "looked at in part since it changed, and then the rest, twice": (
        [
            *[take("a", 1), table("t", "a", 1, labels=["x"]), Begin(1, "s", writes=[Use("t")])],
            Begin(2, "s", writes=[of("a", 1, label="y", start=3)]),
            *[Begin(id, "s", [Use("t", stop=stop)]) for id, stop in ((3, 2), (4, 4), (5, 4))],
        ],
        ("MEM-CONTENT/other", 6),
    ),
    "a load fails of what its stream has looked at": (
        [*mapped("a", 1), End(1, unwritten=[Use("t")]), Begin(2, "s", [Use("t")])],
        ("MEM-WRITTEN/unwritten", 5),
    ),
    "positions in a hole": (
        [*mapped("a", 1, 2), Unmap("t", 0, 1), Begin(2, "s", [Use("t", start=3, stop=8)])],
        ("MEM-USE/no-page", 5),
    ),
    "what a copy had nothing for": (
        [
            take("a", 1, 2),
            Begin(1, "s", writes=[of("a", 1, stop=3)]),
            write(2, "a", 2),
            copy(3, of("a", 1), of("a", 2)),
            read(4, "a", 2),
        ],
        ("MEM-WRITTEN/unwritten", 5),
    ),
    "a plan whose writer has let go": (
        [take("a", 1), Share("tree", "kv", [1]), plan("a"), Release("a", "kv", [1])],
        ("MEM-NAME/unwritten", 4),
    ),
    "a plan whose writer has let go, of whom it had it": (
        [take("a", 1), Share("tree", "kv", [1]), plan("a"), Transfer("a", "b"), Release("b", "kv", [1])],
        ("MEM-NAME/unwritten", 5),
    ),
    "a plan of one of two writers": (
        [
            take("a", 1),
            Share("c", "kv", [1]),
            plan("a"),
            Publish("kv", [1], ["l"], ["x"], planned=True, writer="c"),
            Transfer("a", "b"),
            Release("c", "kv", [1]),
        ],
        ("MEM-NAME/unwritten", 6),
    ),
    "a plan of another holder": ([take("a", 1), plan("b")], ("MEM-NAME/unwritten", 2)),
    "other content": ([take("a", 1), write(1, "a", 1, "x"), read(2, "a", 1, "y")], ("MEM-CONTENT/other", 3)),
    "other content through a table": (
        [take("a", 1), write(1, "a", 1, "x"), table("t", "a", 1, labels=["y"]), Begin(2, "s", [Use(table="t")])],
        ("MEM-CONTENT/other", 4),
    ),
    "other content after a copy": (
        [
            take("a", 1, 2),
            write(1, "a", 1, "x"),
            Begin(2, "s", copies=[(of("a", 1), of("a", 2))]),
            read(3, "a", 2, "y"),
        ],
        ("MEM-CONTENT/other", 4),
    ),
    "published unwritten": ([take("a", 1), Publish("kv", [1], ["k"])], ("MEM-NAME/unwritten", 2)),
    "published with other content": (
        [take("a", 1), write(1, "a", 1, "x"), Publish("kv", [1], ["k"], ["y"])],
        ("MEM-NAME/content", 3),
    ),
    "one key, two contents": (
        [
            take("a", 1, 2),
            write(1, "a", 1, "x"),
            write(2, "a", 2, "y"),
            Publish("kv", [1], ["k"], ["x"]),
            Publish("kv", [2], ["k"], ["y"]),
        ],
        ("MEM-NAME/ambiguous", 5),
    ),
    "a plan without a writer": (
        [take("a", 1), Publish("kv", [1], ["k"], planned=True), Release("a", "kv", [1])],
        ("MEM-NAME/unwritten", 3),
    ),
    "a failed load keeps its name": (
        [
            take("a", 1),
            write(1, "a", 1),
            Publish("kv", [1], ["k"]),
            End(1, unwritten=[of("a", 1)]),
            Release("a", "kv", [1]),
        ],
        ("MEM-NAME/unwritten", 5),
    ),
    "a load fails of what its name alone finds": (
        [
            take("a", 1),
            write(1, "a", 1, "x"),
            Publish("kv", [1], ["k"], ["x"]),
            Release("a", "kv", [1]),
            End(1, unwritten=[of(None, 1)]),
        ],
        ("MEM-NAME/unwritten", 5),
    ),
    "a plan that is written with something else": (
        [
            take("a", 1),
            Publish("kv", [1], ["k"], ["x"], planned=True),
            write(1, "a", 1, "y"),
            Release("a", "kv", [1]),
        ],
        ("MEM-NAME/content", 4),
    ),
    "a plan for a page without a holder": (
        [
            take("a", 1),
            write(1, "a", 1, "x"),
            Publish("kv", [1], ["k"], ["x"]),
            Release("a", "kv", [1]),
            Publish("kv", [1], ["l"], ["y"], planned=True),
        ],
        ("MEM-NAME/content", 5),
    ),
    "withdrawn twice": ([take("a", 1), Drop("kv", [1], ["k"])], ("MEM-NAME/unnamed", 2)),
    "published overwritten": (
        [take("a", 1), write(1, "a", 1, "x"), Publish("kv", [1], ["k"]), write(2, "a", 1, "y")],
        ("MEM-OVERWRITE/content", 4),
    ),
    "shared overwritten": (
        [take("a", 1), write(1, "a", 1, "x"), Share("b", "kv", [1]), write(2, "b", 1, "y")],
        ("MEM-OVERWRITE/content", 4),
    ),
    "an object read that was withdrawn": (
        [
            Begin(1, "s", writes=[Use(pool="disk", pages=["k"])]),
            Drop("disk", ["k"]),
            Begin(2, "s", [Use(pool="disk", pages=["k"])]),
        ],
        ("MEM-WRITTEN/unwritten", 3),
    ),
    "an object of a table read that was withdrawn": (
        [
            *[Map("t", "a", "disk", 0, ["k"]), Begin(1, "s", writes=[Use("t")]), Drop("disk", ["k"])],
            Begin(2, "s", [Use("t")]),
        ],
        ("MEM-WRITTEN/unwritten", 4),
    ),
    "an object overwritten": (
        [
            Begin(1, "s", writes=[Use(pool="disk", pages=["k"], labels=["x"])]),
            Begin(2, "s", writes=[Use(pool="disk", pages=["k"], labels=["y"])]),
        ],
        ("MEM-OVERWRITE/content", 2),
    ),
    "read on another stream": ([take("a", 1), write(1, "a", 1), read(2, "a", 1, stream="t")], ("MEM-RACE/read", 3)),
    "written under a read": (
        [take("a", 1), write(1, "a", 1), End(1), read(2, "a", 1), write(3, "a", 1, stream="t")],
        ("MEM-RACE/write", 5),
    ),
    "handed on under a read through a table": (
        [
            take("a", 1),
            table("t", "a", 1),
            Begin(1, "s", writes=[Use(table="t")]),
            End(1),
            Begin(2, "s", [Use(table="t")]),
            Unmap("t"),
            Release("a", "kv", [1]),
            take("b", 1),
            write(3, "b", 1, stream="t"),
        ],
        ("MEM-RACE/write", 9),
    ),
    "only its reads are done": (
        [take("a", 1), write(1, "a", 1), End(1, "reads"), write(2, "a", 1, stream="t")],
        ("MEM-RACE/write", 4),
    ),
    "rewritten under a read": (
        [take("a", 1), write(1, "a", 1, "x"), End(1), read(2, "a", 1), write(3, "a", 1, "x", "t")],
        ("MEM-REWRITE/write", 5),
    ),
    "read back after another stream has written on": (
        [
            take("a", 1),
            table("t", "a", 1),
            Begin(1, "s", writes=[Use("t", stop=1)]),
            Begin(2, "s", writes=[Use("t", start=1, stop=2)]),
            Begin(3, "u", writes=[Use("t", start=2, stop=3)], after=[2]),
            Begin(4, "s", [Use("t", stop=3)]),
        ],
        ("MEM-RACE/read", 6),
    ),
    "ended twice": ([take("a", 1), write(1, "a", 1), End(1), End(1)], ("MEM-ORDER/not-in-flight", 4)),
    "ended twice after a later one": (
        [take("a", 1), write(1, "a", 1), write(2, "a", 1), End(2), End(1, "reads"), End(1), End(1)],
        ("MEM-ORDER/not-in-flight", 7),
    ),
    "begun twice": ([take("a", 1), write(1, "a", 1), write(1, "a", 1)], ("MEM-ORDER/begun-again", 3)),
    "promised twice": ([take("a", 1), Reserve("a", "kv", 4), Reserve("b", "kv", 3)], ("MEM-RESERVE/exceeded", 3)),
    "a promise taken by another": ([Reserve("a", "kv", 7), take("b", 1)], ("MEM-RESERVE/exceeded", 2)),
    "a promise of what is shared": (
        [
            *[take("a", 1), write(1, "a", 1), Publish("kv", [1], ["k"]), Release("a", "kv", [1])],
            *[Reserve("a", "kv", 7), Share("b", "kv", [1])],
        ],
        ("MEM-RESERVE/exceeded", 6),
    ),
    "delivered without what it was computed from": (
        [
            take("a", 1, 2),
            Begin(1, "t", writes=[of("a", 1)]),
            Begin(2, "s", [of("a", 1)], [of("a", 2)], after=[1]),
            End(1, unwritten=[of("a", 1)]),
            Deliver(2, "a"),
        ],
        ("MEM-DELIVER/tainted", 5),
    ),
    "an assertion of the engine": ([Failed("assertion", "n > 0")], ("MEM-FAILED/assertion", 1)),
    "no memory is left": ([Failed("exhausted", "no page")], ("MEM-FAILED/exhausted", 1)),
    "a copy of nothing over a shared slot": (
        [
            take("a", 1, 2),
            write(1, "a", 1, "x"),
            Share("b", "kv", [1]),
            Begin(2, "s", copies=[(of("a", 2), of("a", 1))]),
        ],
        ("MEM-OVERWRITE/unwritten", 4),
    ),
    "gave up": ([Failed("stuck", "no progress")], ("MEM-FAILED/stuck", 1)),
}


RIGHT: dict[str, list[Event]] = {
    "a load fails whose page a complete pass has filled since": [
        take("a", 1),
        Begin(1, "t", writes=[of("a", 1)]),
        Begin(2, "s", writes=[of("a", 1)], after=[1]),
        End(2),
        End(1, unwritten=[of("a", 1)]),
        Begin(3, "s", [of("a", 1)]),
    ],
    "a load fails whose page was filled through a table that has another one now": [
        take("a", 1, 2),
        write(1, "a", 2),
        table("t", "a", 1),
        Begin(2, "t", writes=[of("a", 1)]),
        Begin(3, "s", writes=[Use(table="t")], after=[2]),
        table("t", "a", 2),
        End(2, unwritten=[of("a", 1)]),
        Begin(4, "s", [of("a", 1)]),
    ],
    "the unwritten part is of another operation": [
        take("a", 1, 2),
        write(1, "a", 1),
        Begin(2, "t", writes=[of("a", 2)]),
        End(2, unwritten=[of("a", 1)]),
        Begin(3, "s", [of("a", 1)]),
    ],
    "a load fails, and one of its pages was copied over another": [
        take("a", 1),
        take("b", 2),
        Begin(1, "t", writes=[of("a", 1), of("b", 2)]),
        Begin(2, "s", copies=[(of("a", 1), of("b", 2))], after=[1]),
        End(1, unwritten=[of("a", 1), of("b", 2)]),
        Begin(3, "s", [of("b", 2)]),
    ],
    "copied to padding": [take("a", 1), copy(1, of("a", 1), of("a", 8))],
    "a load fails for a run that has left": [
        take("a", 1, 2),
        table("t", "a", 1, 2),
        Begin(1, "t", writes=[of("a", 1, 2)]),
        Begin(2, "s", [Use(table="t", stop=8)], after=[1]),
        Unmap("t"),
        Release("a", "kv", [1, 2]),
        EndHolder("a"),
        End(1, unwritten=[of(None, 1, 2, 5)]),
    ],
    "pages that change places": [
        take("a", 1, 2),
        write(1, "a", 1, "x"),
        write(2, "a", 2, "y"),
        Begin(3, "s", copies=PAIRS, reads_own_writes=False),
        Begin(4, "s", [of("a", 1, label="y"), of("a", 2, label="x")]),
    ],
    "taken along before it is overwritten": [
        take("a", 1, 2),
        write(1, "a", 1, "x"),
        Begin(2, "s", writes=[of("a", 1, label="z")], copies=PAIRS[:1], reads_own_writes=False),
        Begin(3, "s", [of("a", 1, label="z"), of("a", 2, label="x")]),
    ],
    "an empty entry of a batch reads padding": [
        *[take("a", 1), table("t", "a", 1), Begin(1, "s", writes=[Use("t")])],
        Begin(2, "s", [Use("t"), of(None, 8)], [of(None, 8)]),
        Deliver(2, "a"),
    ],
    "lists that are whole": [
        *[take("a", 1), write(1, "a", 1, "x"), Publish("kv", [1], ["k"], ["x"]), Share("b", "kv", [1], ["k"])],
        *[take("a", 4), Release("a", "kv", [1]), Release("b", "kv", [1])],
        Count("kv", free=[7, (5, 2), (2, 2)], cached=[1], held=[4]),
    ],
    "parallel writes of one operation, the same or of unknown content": [
        take("a", 1),
        write(1, "a", 1, "y"),
        Begin(2, "s", writes=[of("a", 1, label="x"), of("a", 1, label="x"), of("a", 1)]),
        Begin(
            3, "s", writes=[of("a", 1, label="y"), Use(pool="kv", pages=[1], labels=["x"], holder="a", at_most=True)]
        ),
        Begin(4, "s", writes=[of(None, 8, label="x"), of(None, 8, label="y")]),
    ],
    "a write that is allowed there, and one that writes more": [
        *[take("a", 1), write(1, "a", 1, "w")],
        Begin(2, "s", writes=[Use(None, "kv", [1], 0, 2, ["x"], "a", at_most=True), of("a", 1, label="y")]),
    ],
    "parallel writes to two pages, one of which holds something else": [
        *[take("a", 1, 2), write(1, "a", 1, "w")],
        Begin(2, "s", writes=[of("a", 1, label="x", stop=2), of("a", 2, label="y"), of("a", 1, label="x", start=2)]),
    ],
    "parallel writes of one operation that write other slots anew": [
        take("a", 1),
        write(1, "a", 1, "y"),
        Begin(2, "s", writes=[of("a", 1, label="x", stop=2), of("a", 1, label="x", start=2)]),
    ],
    "a page goes round": [
        take("a", 1),
        write(1, "a", 1, "k"),
        Publish("kv", [1], ["k"], ["k"]),
        Release("a", "kv", [1]),
        Share("b", "kv", [1], ["k"]),
        read(2, "b", 1, "k"),
        Release("b", "kv", [1]),
        Drop("kv", [1], ["k"]),
        Count("kv", free=7, held=0, cached=0),
        take("c", 1),
        write(3, "c", 1, "z"),
        Release("c", "kv", [1]),
        EndHolder("c"),
        Idle(),
    ],
    "a plan that is kept": [
        take("a", 1),
        Publish("kv", [1], ["k"], ["x"], planned=True),
        write(1, "a", 1, "x"),
        Release("a", "kv", [1]),
    ],
    "a label that is learned": [take("a", 1), write(1, "a", 1, "a/0"), Unify("a/0", "k"), read(2, "a", 1, "k")],
    "the first slots of a label are learned": [
        take("a", 1),
        write(1, "a", 1, "a/0"),
        Unify("a/0", "k", 2),
        Begin(2, "s", reads=[of("a", 1, label="k", stop=2)]),
    ],
    "waits order": [take("a", 1), write(1, "a", 1), Wait("t", 1), write(2, "a", 1, stream="t")],
    "waits for a stream order": [take("a", 1), write(1, "a", 1), Wait("t", on="s"), write(2, "a", 1, stream="t")],
    "order goes on": [
        take("a", 1, 2),
        write(1, "a", 1),
        Begin(2, "t", writes=[of("a", 2)], after=[1]),
        Begin(3, "u", writes=[of("a", 1)], after=[2]),
    ],
    "the host has seen it": [take("a", 1), write(1, "a", 1), End(1), write(2, "a", 1, stream="t")],
    "the host has synchronized": [
        take("a", 1),
        write(1, "a", 1),
        Wait("host", on="s"),
        write(2, "a", 1, stream="t"),
        End(1),
    ],
    "a host sends to another": [
        *BOTH,
        pushed(1, 1),
        End(1, host="p"),
        Send("m", host="p"),
        Receive("m", host="d"),
        used_by_d(2, 1),
    ],
    "a transfer notifies its target": [
        *BOTH,
        pushed(1, 1),
        Send("m", [1], host="p"),
        Receive("m", host="d"),
        used_by_d(2, 1),
        End(1, host="p"),
    ],
    "a host asks another to write": [
        *BOTH,
        *[Begin(1, "s", writes=[of("a", 1)], host="d"), used_by_d(2, 1), End(2, host="d")],
        *[Send("m", host="d"), Receive("m", host="p"), pushed(3, 1)],
    ],
    "two hosts see the same": [
        *BOTH,
        *[pushed(1, 1), End(1, host="p"), End(1, host="d"), used_by_d(2, 1), Deliver(1, "a", host="d")],
    ],
    "a host that comes later": [take("a", 1), write(1, "a", 1), End(1), used_by_d(2, 1)],
    "routers know each name": [
        *[*KEYS, stored("k", labels=["x"], batch=0), stored("l", parent="k", labels=["y"], pool="kv")],
        *[Drop("kv", [2]), removed("l", pool="kv", batch=1), Publish("kv", [2], ["l"], ["y"])],
        *[Announce("gpu", ["l"], None, ["y"], ["k"]), stored("k", labels=["x"], pool="kv"), ALL],
        *[Drop("kv", [1, 2]), Announce("gpu", cleared=True, pool="kv")],
    ],
    "routers know of two tiers and two engines": [
        *[
            Announce("gpu", ["k", "l"], batch=7),
            Announce("cpu", ["m"], "l", removed=["z"]),
            Announce("cpu", removed=["m"]),
        ],
        *[Announce("gpu", ["k"], host="d", batch=0), Announce("gpu", removed=["k"], host="d", batch=1)],
        *[Announce(cleared=True, batch=8), Announce("cpu", ["m"]), Announce("gpu", ["k"])],
        *[Announce("gpu", ["k"], batch=0), Announce("cpu", ["m"], "k", batch=1)],
    ],
    "ranks decide the same at their own times": [
        *[*decided("p", "x", "y", "y"), *decided("d", "x"), Idle(pools=["kv"]), *decided("d", "y"), *decided("e", "x")],
        *[*decided("e", "y", "y"), *decided("d", "y"), Decide("dp", "z", host="d"), Idle()],
    ],
    "its reads are done": [
        take("a", 1),
        write(1, "a", 1),
        End(1),
        read(2, "a", 1),
        Wait("t", 2, part="reads"),
        write(3, "a", 1, stream="t"),
    ],
    "attention sees what it writes": [take("a", 1), Begin(1, "s", [of("a", 1)], [of("a", 1)])],
    "padding is written": [Begin(1, "s", writes=[of(None, 8)]), Begin(2, "t", writes=[of(None, 8)])],
    "a pin does not share": [
        take("a", 1),
        write(1, "a", 1, "x"),
        Share("b", "kv", [1], pin=True),
        write(2, "a", 1, "y"),
        Release("a", "kv", [1]),
        Release("b", "kv", [1]),
    ],
    "a turn takes the slot's pages up": [
        take("a", 1),
        table("t", "a", 1, labels=["x"]),
        Begin(1, "s", writes=[Use(table="t")]),
        Transfer("a", "b"),
        EndHolder("a"),
        Begin(2, "s", [Use(table="t")]),
    ],
    "a plan is kept in two steps": [
        take("a", 1),
        Share("b", "kv", [1]),
        Publish("kv", [1], ["k"], ["x"], planned=True),
        write(1, "a", 1, "half"),
        write(2, "a", 1, "x"),
        Release("a", "kv", [1]),
        Release("b", "kv", [1]),
    ],
    "a plan is written over what was discarded": [
        take("a", 1),
        write(1, "a", 1, "draft"),
        Publish("kv", [1], ["k"], ["x"], planned=True),
        write(2, "a", 1, "x"),
    ],
    "a promise that is taken up": [Reserve("a", "kv", 2), take("a", 1, 2), take("b", 3, 4, 5, 6, 7)],
    "a row's entries are labels": [
        Take("a", "rows", [1]),
        Begin(1, "host", writes=[Use(pool="rows", pages=[1], holder="a", stop=6, labels=["17", "4"])]),
        Begin(2, "s", reads=[Use(pool="rows", pages=[1], holder="a", start=4, stop=6, labels=["4"])]),
    ],
    "delivered where no end is recorded": [take("a", 1), write(1, "a", 1), Deliver(1, "a")],
    "delivered whenever it was": [
        *[take("a", 1), write(2, "a", 1), End(2), write(3, "a", 1, stream="host"), write(1, "a", 1), End(1)],
        *[Begin("f", "s"), End("f"), *[Deliver(id, "a") for id in (1, 2, 3, "f", "g")]],
    ],
    "delivered under a name with no host before its number": [
        *[take("a", 1), Begin("p/1", "s", writes=[of("a", 1)], host="p"), End("p/1", host="p")],
        *[Deliver(id, "a", host="p") for id in ("p/1", "p/0", "q/2", "p/one", "p/2/2", "2", f"p/{10**18}")],
    ],
    "delivered from a stream without a recorded end": [
        take("a", 1),
        write(1, "a", 1),
        End(1),
        read(2, "a", 1, stream="t"),
        Deliver(2, "a"),
    ],
    "delivered once the host has waited": [
        take("a", 1),
        write(1, "a", 1),
        End(1),
        read(2, "a", 1),
        Wait("host", 2),
        Deliver(2, "a"),
    ],
    "what was promised to who has left": [Reserve("a", "kv", 7), EndHolder("a"), take("b", 1, 2)],
    "a table names padding": [take("a", 1), table("t", "a", 8, 1), Begin(1, "s", writes=[Use("t")])],
    "an object stays when a table names it no more": [
        *[Map("t", "a", "disk", 0, ["k"]), Begin(1, "s", writes=[Use("t")]), Unmap("t")],
        Begin(2, "s", [Use(pool="disk", pages=["k"])]),
    ],
    "the rest of a page means something else": [
        *[take("a", 1), Begin(1, "s", writes=[of("a", 1, label="x", stop=2)]), table("t", "a", 1, labels=["y"])],
        *[Begin(2, "s", writes=[Use("t", start=2, stop=4)]), Begin(3, "s", [of("a", 1, label="y", start=2)])],
    ],
    "padding was to be loaded": [
        *[take("a", 1), Begin(1, "t", writes=[of(None, 8)]), Begin(2, "s", [of(None, 8)], [of("a", 1)], after=[1])],
        *[End(1, unwritten=[of(None, 8)]), End(2), Deliver(2, "a")],
    ],
    "a page that three tables name": [
        *mapped("a", 1),
        *[table(name, "a", 1) for name in "uv"],
        *[Begin(id, "s", [Use(name)]) for id, name in enumerate("tuv", 2)],
    ],
    "an operation has the name of one whose results were tainted": [
        *[take("a", 1, 2), Begin(1, "t", writes=[of("a", 1)])],
        *[Begin(2, "s", [of("a", 1)], [of("a", 2)], after=[1]), End(1, unwritten=[of("a", 1)]), End(2)],
        *[write(1, "a", 1), End(1), read(2, "a", 1), End(2), Deliver(2, "a")],
    ],
    "another's table stays when one passes all on": [
        *[take("b", 2), table("u", "b", 2), *mapped("a", 1), Transfer("a", "c")],
        Begin(2, "s", [Use("t")], [Use("u")]),
    ],
    "how many pages are free of a pool whose size is not recorded": [
        Take("a", "rows", [1]),
        Count("rows", free=5, held=1),
    ],
    "a plan of a writer that has let go of one of two references": [
        *[take("a", 1), Share("a", "kv", [1]), plan("a"), Release("a", "kv", [1]), write(1, "a", 1, "x")],
        Release("a", "kv", [1]),
    ],
    "a page that is filled in part is copied": [
        take("a", 1, 2),
        Begin(1, "s", writes=[of("a", 1, label="x", stop=3)]),
        copy(2, of("a", 1), of("a", 2)),
        Begin(3, "s", [of("a", 2, label="x", stop=3)]),
        Deliver(3, "a"),
    ],
    "positions behind a hole": [
        *mapped("a", 1, 2),
        Unmap("t", 0, 1),
        Release("a", "kv", [1]),
        Begin(2, "s", [Use("t", start=4, stop=8)]),
    ],
    "what is before a write in a table is none of it": [
        take("a", 1, 2, 3),
        table("t", "a", 1, 2, 3, labels=["x", "y", "z"]),
        Begin(1, "s", writes=[of("a", 3, label="w", stop=1)]),
        Release("a", "kv", [1]),
        Begin(2, "s", writes=[Use("t", start=4, stop=12)]),
    ],
    "one holder has two references, and two pins": [
        *[take("a", 1), Share("a", "kv", [1]), *[Share("p", "kv", [1], pin=True)] * 2],
        Count("kv", references={1: 4}),
        *[Release(holder, "kv", [1]) for holder in "apap"],
        Idle(),
    ],
    "what may be written at the end of a table may be anything": [
        *[take("a", 1), table("t", "a", 1, labels=["x"])],
        *[Begin(id, "s", writes=[Use("t", start=id, stop=id + 1)]) for id in range(2)],
        Begin(2, "s", writes=[Use("t", start=2, stop=3, at_most=True)]),
        Begin(3, "s", [of("a", 1, label="y", start=2, stop=3)]),
    ],
    "each of several has one reference": [
        take("a", 1),
        *[Share(holder, "kv", [1]) for holder in "bc"],
        *[Share(holder, "kv", [1], pin=True) for holder in "pqr"],
        Count("kv", references={1: 6}),
        *[Release(holder, "kv", [1]) for holder in "abcpqr"],
        Idle(),
    ],
    "a hole is filled": [
        *mapped("a", 1, 2),
        Unmap("t", 0, 1),
        Map("t", "a", "kv", 0, [1], ["x"]),
        Begin(2, "s", [Use("t", stop=8)]),
    ],
    "a plan is kept, and its writer leaves": [
        take("a", 1),
        Share("tree", "kv", [1]),
        plan("a"),
        write(1, "a", 1, "x"),
        Release("a", "kv", [1]),
    ],
    "the rest of a page is written later": [
        take("a", 1),
        Begin(1, "s", writes=[of("a", 1, label="x", stop=3)]),
        Begin(2, "s", [of("a", 1, label="x")], [of("a", 1, label="x", start=3)]),
    ],
}


MALFORMED: dict[str, Event] = {
    "no such pool": Take("a", "xv", [1]),
    "a wait for nothing": Wait("t"),
    "a key where pages have numbers": Take("a", "kv", ["k"]),
    "a key among numbers": Take("a", "kv", [1, "k"]),
    "a storage has no allocator": Take("a", "disk", ["k"]),
    "keys that do not fit": Publish("kv", [1], ["k", "l"]),
    "labels that do not fit": Publish("kv", [1], ["k"], ["x", "y"]),
    "slots backwards": Begin(1, "s", writes=[of("a", 1, start=3, stop=2)]),
    "a use of nothing": Begin(1, "s", writes=[Use()]),
    "a use of a table and of pages": Begin(1, "s", reads=[Use(table="t", pages=[1])]),
    "a use of a table in a pool": Begin(1, "s", reads=[Use(table="t", pool="kv")]),
    "a use of a table for a holder": Begin(1, "s", reads=[Use(table="t", holder="a")]),
    "a copy to fewer slots": Begin(1, "s", copies=[(of("a", 1), of("a", 1, stop=2))]),
    "a table with a gap": Map("t", "a", "kv", 2, [1]),
    "less than nothing reserved": Reserve("a", "kv", -1),
}
