"""Shapes of traces of the request level whose cost may grow faster than their size: each as large as is asked for.

The reference answers; of a snapshot a shape may keep some parts only.
"""

from collections.abc import Callable, Iterator, Sequence
from itertools import count
from typing import Any

from kvref import Manager
from kvspec.events import (
    Abort,
    CacheUnfinished,
    CloseSession,
    Complete,
    Config,
    Decode,
    Event,
    Evict,
    Extend,
    Finish,
    Launch,
    MatchPrefix,
    OpenSession,
    Preempt,
    Refusal,
    Report,
    Retract,
    Snapshot,
    SnapshotAnswer,
    Submit,
)

Shape = Callable[[int], Iterator[Event]]

SHAPES: dict[str, tuple[Config, Shape]] = {}
"""Name -> the sizes and the operations of a shape."""

PLAIN = Config(page_size=1, num_pages=1 << 12, num_rows=1 << 11, max_context_len=1 << 16)
PAGED = Config(page_size=16, num_pages=1 << 9, num_rows=1 << 9, max_context_len=1 << 16)
CHUNKS = Config(page_size=1, num_pages=1 << 12, num_rows=1 << 11, max_context_len=1 << 16, prefix_cache=False)


_LAUNCHES = count()


def shape(config: Config) -> Callable[[Shape], Shape]:
    """A shape in such sizes."""

    def add(made: Shape) -> Shape:
        SHAPES[made.__name__] = config, made
        return made

    return add


def operations(name: str, size: int) -> list[Event]:
    """The operations of a shape with the reference's answers."""
    config, made = SHAPES[name]
    manager = Manager(config)
    done = []
    for op in made(size):
        kept: Sequence[str] | None = op.obs  # of a snapshot: the parts that are kept
        arguments = [getattr(op, field) for field in op.__struct_fields__ if field not in ("obs", "refused")]
        try:
            op.obs = getattr(manager, str(op.__struct_config__.tag))(*arguments)
        except Refusal as refusal:
            op.obs, op.refused = None, refusal.refused
        if kept is not None:
            op.obs = SnapshotAnswer(**{field: getattr(op.obs, field) for field in kept})
        done.append(op)
    return done


def some(*parts: str) -> Event:
    """A snapshot of some parts."""
    reported: Any = parts
    return Snapshot(obs=reported)


def admitted(name: str, tokens: list[int], session: str | None = None) -> Iterator[Event]:
    """A request that comes and is admitted."""
    yield Submit(name, [*tokens], session)
    yield MatchPrefix(name)
    yield Extend([(name, len(tokens))])
    yield from launched(name)


def launched(name: str) -> Iterator[Event]:
    """A prepared forward of a request is computed."""
    launch = next(_LAUNCHES)
    yield Launch(launch, [name])
    yield Complete(launch, {name: 7})


def decoded(name: str) -> Iterator[Event]:
    """A request goes on by one token."""
    yield Decode([name])
    yield from launched(name)


def whole(name: str, tokens: list[int], session: str | None = None) -> Iterator[Event]:
    """A request that comes, is computed, and finishes."""
    yield from admitted(name, tokens, session)
    yield CacheUnfinished(name)
    yield Finish(name)


@shape(PLAIN)
def snapshots_of_one_long_request(n: int) -> Iterator[Event]:
    yield from admitted("a", [*range(n)])
    for _ in range(n // 8):
        yield Snapshot()


@shape(PLAIN)
def small_snapshots_of_one_long_request(n: int) -> Iterator[Event]:
    yield from admitted("a", [*range(n)])
    for _ in range(n):
        yield some("free_rows")


@shape(PLAIN)
def snapshots_of_locks_of_a_long_prefix(n: int) -> Iterator[Event]:
    yield from whole("a", [*range(n)])
    for _ in range(n):
        yield some("locks")


@shape(PLAIN)
def snapshots_of_free_pages(n: int) -> Iterator[Event]:
    yield from admitted("a", [*range(n)])
    for _ in range(n):
        yield some("free_pages")


@shape(PLAIN)
def snapshots_of_free_pages_between_decode_steps(n: int) -> Iterator[Event]:
    yield from admitted("a", [*range(n)])
    for _ in range(n):
        yield from decoded("a")
        yield some("free_pages")


@shape(PLAIN)
def snapshots_of_the_stores_pages(n: int) -> Iterator[Event]:
    yield from whole("a", [*range(n)])
    for _ in range(n):
        yield some("store_pages")


@shape(PLAIN)
def snapshots_of_rows_without_any_part(n: int) -> Iterator[Event]:
    for k in range(n // 8):
        yield from admitted(f"r{k}", [k])
    for _ in range(n):
        yield some()


@shape(PLAIN)
def reports_of_one_long_request(n: int) -> Iterator[Event]:
    yield from admitted("a", [*range(n)])
    for _ in range(n):
        yield Report()


@shape(PLAIN)
def reports_of_many_requests(n: int) -> Iterator[Event]:
    for k in range(n):
        yield from admitted(f"r{k}", [k])
        yield Report()


@shape(PLAIN)
def reports_between_decode_steps(n: int) -> Iterator[Event]:
    for k in range(n // 8):
        yield from admitted(f"r{k}", [k])
    for k in range(n):
        yield from decoded(f"r{k % (n // 8)}")
        yield Report()


@shape(PLAIN)
def one_request_is_retracted_again_and_again(n: int) -> Iterator[Event]:
    yield Submit("a", [*range(n)])
    for _ in range(n // 4):
        yield MatchPrefix("a")
        yield Extend([("a", n)])
        yield Retract("a")


@shape(PLAIN)
def a_request_is_retracted_as_it_grows(n: int) -> Iterator[Event]:
    yield from admitted("a", [0])
    for k in range(n // 4):
        yield Retract("a")
        yield MatchPrefix("a")
        yield Extend([("a", 2 + k)])
        yield from launched("a")


@shape(PLAIN)
def many_requests_are_retracted(n: int) -> Iterator[Event]:
    for k in range(n // 2):
        yield from admitted(f"r{k}", [k])
    for k in range(n // 2):
        yield Retract(f"r{k}")


@shape(PLAIN)
def many_requests_wait(n: int) -> Iterator[Event]:
    for k in range(n):
        yield Submit(f"r{k}", [k])
    for k in range(n):
        yield Abort(f"r{k}")


@shape(PLAIN)
def many_requests_run_and_finish(n: int) -> Iterator[Event]:
    for k in range(n):
        yield from whole(f"r{k}", [k, k + 1])


@shape(PLAIN)
def a_prefix_that_grows_by_one_page(n: int) -> Iterator[Event]:
    for k in range(1, n // 4):
        yield from whole(f"r{k}", [*range(max(0, k - 4), k)])


@shape(PLAIN)
def many_branches_of_one_prefix(n: int) -> Iterator[Event]:
    for k in range(n):
        yield from whole(f"r{k}", [0, k + 1])


@shape(PLAIN)
def pages_are_evicted_one_by_one(n: int) -> Iterator[Event]:
    for k in range(n):
        yield from whole(f"r{k}", [k])
    for _ in range(n):
        yield Evict(1)


@shape(PAGED)
def one_request_decodes(n: int) -> Iterator[Event]:
    yield from admitted("a", [1])
    for _ in range(n):
        yield from decoded("a")


@shape(PLAIN)
def launches_that_do_not_complete(n: int) -> Iterator[Event]:
    for k in range(n):
        yield Submit(f"r{k}", [k])
        yield MatchPrefix(f"r{k}")
        yield Extend([(f"r{k}", 1)])
        yield Launch(1_000_000 + k, [f"r{k}"])


@shape(PLAIN)
def many_sessions_come_and_go(n: int) -> Iterator[Event]:
    for k in range(n):
        yield OpenSession(f"s{k}")
        yield from admitted(f"r{k}", [k], f"s{k}")
        yield Finish(f"r{k}")
        yield CloseSession(f"s{k}")


@shape(PLAIN)
def many_sessions_are_idle(n: int) -> Iterator[Event]:
    for k in range(n // 2):
        yield OpenSession(f"s{k}")
        yield from admitted(f"r{k}", [k], f"s{k}")
        yield Finish(f"r{k}")
    for k in range(n // 2):
        yield Preempt(f"s{k}")


@shape(CHUNKS)
def many_requests_without_a_store(n: int) -> Iterator[Event]:
    for k in range(n):
        yield from whole(f"r{k}", [k, k + 1])


@shape(PLAIN)
def reports_while_many_wait(n: int) -> Iterator[Event]:
    for k in range(4 * n):
        yield Submit(f"r{k}", [k])
    for _ in range(4 * n):
        yield Report()
