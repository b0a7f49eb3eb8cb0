"""Numbers that no memory manager of the given sizes can write: an input error, not a broken rule.

The model checks all that a defective engine could truly report: figures that do not add up, a page in two
places, lengths in the wrong order.
"""

from collections.abc import Callable, Iterable
from typing import Any

from kvspec.events import (
    Config,
    Decode,
    DecodeAnswer,
    Evict,
    EvictAnswer,
    Extend,
    ExtendAnswer,
    MatchAnswer,
    Operation,
    PublishAnswer,
    ReleaseAnswer,
    SnapshotAnswer,
    StateAnswer,
    Submit,
    SwaEvictAnswer,
    Verify,
)
from kvspec.pages import Runs, ceil_pages
from kvspec.rules import RULES
from kvtrace.operations import NUMBERS

LARGEST = 2**31 - 1
"""The largest size that a configuration may have."""

TOKENS = 1 << 24
"""The most elements in the tokens of a request, however few pages they fill."""

ALLOWED = 1 << 14
"""Pages or positions that any file may name without writing them out, in runs or by a count."""
ALLOWED_A_BYTE = 16
"""Further ones for each byte read of the file. A page that is written out takes at least two bytes."""


def search_seconds(size: int) -> float:
    """The time limit, in seconds, for finding the shortest traces of all findings in a file of `size` bytes."""
    return 0.5 + size / 10_000


class OutOfRange(ValueError):
    """A number out of its range; the message names both."""


class Allowance:
    """The pages and positions that a file may still name without writing them out: its cost follows its size."""

    def __init__(self) -> None:
        """No line of the file has been read."""
        self._left = ALLOWED

    def read(self, size: int) -> None:
        """A line of `size` bytes has been read."""
        self._left += size * ALLOWED_A_BYTE

    def spend(self, number: int, what: str) -> None:
        """Count the numbers that an event names.

        Raises:
            OutOfRange: they are too many for the bytes read so far.
        """
        if number > self._left:
            raise OutOfRange(
                f"{number:,} {what} without being written out, more than the {max(0, self._left):,} that a file of "
                "this length may have"
            )
        self._left -= number


def check_config(config: Config) -> None:
    """Refuse sizes that no memory manager has.

    Raises:
        OutOfRange: a size is less than 1 or more than `LARGEST`, or there is a window without a pool or the reverse.
    """
    for name in ("page_size", "num_pages", "max_context_len"):
        if not 1 <= getattr(config, name) <= LARGEST:
            raise OutOfRange(f"{name} is {getattr(config, name)}, not in 1..{LARGEST}")
    for name in ("num_rows", "sliding_window", "num_window_pages", "num_states"):
        if not 0 <= getattr(config, name) <= LARGEST:
            raise OutOfRange(f"{name} is {getattr(config, name)}, not in 0..{LARGEST}")
    if bool(config.sliding_window) != bool(config.num_window_pages):
        raise OutOfRange("sliding_window and num_window_pages go together: one of them is 0")
    if config.sliding_window and config.num_states:
        raise OutOfRange("sliding_window and num_states exclude each other: kvspec knows one hybrid pool at a time")


def check_rule(rule: str) -> None:
    """Refuse the id of a rule that does not exist.

    Raises:
        OutOfRange: there is no such rule.
    """
    if rule not in RULES:
        raise OutOfRange(f"unknown rule {rule!r}")


def check_operation(op: Operation[Any], config: Config) -> None:
    """Refuse numbers outside the ranges of `config`, in the arguments of an operation and in its answer.

    Raises:
        OutOfRange: a count or a length is negative, or a page, slot or row does not exist.
    """
    check = _ARGUMENTS.get(type(op))
    if check is not None:
        check(op, config)
    if op.refused is not None:
        _natural("pages_short", op.refused.pages_short)
        _natural("rows_short", op.refused.rows_short)
        _natural("window_short", op.refused.window_short)
        _natural("states_short", op.refused.states_short)
        if op.refused.rule is not None:
            check_rule(op.refused.rule)
    check_answer = _ANSWERS.get(type(op.obs))
    if check_answer is not None:
        check_answer(op.obs, config)


def _check_tokens(op: Submit, config: Config) -> None:
    _within("the number of tokens", len(op.tokens), TOKENS)
    if len(op.tokens) > NUMBERS:
        keys = sum(isinstance(element, str) for element in op.tokens)
        pages = keys + ceil_pages(len(op.tokens) - keys, config.page_size)
        _within("the number of pages that the tokens fill", pages, NUMBERS)


def _check_reqs(op: Extend, _: Config) -> None:
    for req, seq_len in op.reqs:
        if seq_len < 0:
            _natural(f"seq_len of {req}", seq_len)


def _check_evict(op: Evict, _: Config) -> None:
    _natural("n", op.n)
    _natural("window", op.window)
    _natural("states", op.states)


_ARGUMENTS: dict[type, Callable[[Any, Config], None]] = {
    Extend: _check_reqs,
    Decode: lambda op, _: _natural("n", op.n),
    Submit: _check_tokens,
    Evict: _check_evict,
    Verify: lambda op, _: _natural("accepted", op.accepted),
}


def _check_match(obs: MatchAnswer, config: Config) -> None:
    _natural("prefix_len", obs.prefix_len)
    _natural("protected_len", obs.protected_len)
    _check_freed(obs, config)
    _runs("state slot", obs.states_freed, _states(config))


def _check_published(obs: PublishAnswer, config: Config) -> None:
    _natural("protected_len", obs.protected_len)
    _natural("evicted_len", obs.evicted_len)
    if obs.evicted_len is not None and not config.sliding_window:
        raise OutOfRange("evicted_len is given, but these sizes have no sliding window")
    _check_freed(obs, config)
    _slot(obs.state_cached, config)
    _slot(obs.state_taken, config)


def _check_released(obs: ReleaseAnswer, config: Config) -> None:
    _check_freed(obs, config)
    _runs("state slot", obs.states_freed, _states(config))
    _slot(obs.state_cached, config)


def _check_freed(obs: MatchAnswer | PublishAnswer | ReleaseAnswer, config: Config) -> None:
    _runs("page", obs.freed, _pages(config))
    _runs("window page", obs.window_freed, _windows(config))


def _check_evicted(obs: EvictAnswer, config: Config) -> None:
    _runs("page", obs.evicted, _pages(config))
    _runs("window page", obs.window_evicted, _windows(config))
    _runs("state slot", obs.states_evicted, _states(config))


def _check_swa_evicted(obs: SwaEvictAnswer, config: Config) -> None:
    _natural("evicted_len", obs.evicted_len)
    _runs("window page", obs.window_freed, _windows(config))


def _check_extended(obs: ExtendAnswer, config: Config) -> None:
    _each("row", (obs.rows or {}).values(), range(config.num_rows))
    _check_given(obs, config)
    for slots in (obs.states or {}).values():
        _runs("state slot", slots, _states(config))
    _each("state slot", (obs.states_from or {}).values(), _states(config))


def _check_given(obs: ExtendAnswer | DecodeAnswer, config: Config) -> None:
    for given in (obs.pages or {}).values():
        _runs("page", given, _pages(config))
    for given in (obs.window_pages or {}).values():
        _runs("window page", given, _windows(config))


def _pages(config: Config) -> range:
    return range(1, config.num_pages + 1)


def _windows(config: Config) -> range:
    return range(1, config.num_window_pages + 1)


def _states(config: Config) -> range:
    return range(1, config.num_states + 1)


def _slot(slot: int | None, config: Config) -> None:
    if slot is not None:
        _each("state slot", (slot,), _states(config))


def _check_snapshot(obs: SnapshotAnswer, config: Config) -> None:
    pages, window, states, rows = _pages(config), _windows(config), _states(config), range(config.num_rows)
    slots = range(config.page_size, (config.num_pages + 1) * config.page_size)
    _runs("page", obs.free_pages, pages, LARGEST)
    _runs("page", obs.store_pages, pages)
    _runs("row", obs.free_rows, rows, LARGEST)
    _runs("row", obs.withheld_rows, rows)
    for kind, counts, pool in (
        ("page", obs.locks, pages),
        ("window page", obs.window_locks, window),
        ("state slot", obs.state_locks, states),
    ):
        _each(kind, counts or {}, pool)
        for number, locks in (counts or {}).items():
            _natural(f"the number of locks on {kind} {number}", locks)
    _each("page", obs.window_sides or {}, pages)
    _each("window page", (obs.window_sides or {}).values(), window)
    _runs("state slot", obs.free_states, states, LARGEST)
    _runs("state slot", obs.store_states, states)
    _each("row", obs.rows or {}, rows)
    for positions in (obs.rows or {}).values():
        _runs("slot", positions, slots)
    for name, view in ((obs.requests or {}) | (obs.sessions or {})).items():
        _each("row", () if view.row is None else (view.row,), rows)
        _natural(f"protected_len of {name}", view.protected_len)
        _natural(f"committed_len of {name}", view.committed_len)
        _natural(f"allocated_len of {name}", view.allocated_len)
        _natural(f"swa_evicted_len of {name}", view.swa_evicted_len)
        _runs("state slot", view.states, states)
        _each("state slot", () if view.computing is None else (view.computing,), states)
        _each("state slot", (view.tracking or {}).values(), states)
        for border in view.tracking or {}:
            _natural(f"a page border of {name}", border)


_ANSWERS: dict[type, Callable[[Any, Config], None]] = {
    MatchAnswer: _check_match,
    PublishAnswer: _check_published,
    ReleaseAnswer: _check_released,
    EvictAnswer: _check_evicted,
    SwaEvictAnswer: _check_swa_evicted,
    ExtendAnswer: _check_extended,
    DecodeAnswer: _check_given,
    StateAnswer: lambda obs, config: _slot(obs.state, config),
    SnapshotAnswer: _check_snapshot,
}


def _within(name: str, number: int, most: int) -> None:
    if number > most:
        raise OutOfRange(f"{name} is {number:,}, more than the {most:,} that one operation may have")


def _natural(name: str, number: int | None) -> None:
    if number is not None and number < 0:
        raise OutOfRange(f"{name} is {number}, less than 0")


def _each(kind: str, numbers: Iterable[int], allowed: range) -> None:
    for number in numbers:
        if not allowed:
            raise OutOfRange(f"{kind} {number} is given, but these sizes have no {kind}s")
        if number not in allowed:
            raise OutOfRange(f"{kind} {number} is not in {allowed.start}..{allowed.stop - 1}")


def _runs(kind: str, runs: Runs | None, allowed: range, most: int = NUMBERS) -> None:
    """Checks the ends of each run without expanding it."""
    total, least, stop = 0, allowed.start, allowed.stop
    for run in runs or ():
        first, count = (run, 1) if isinstance(run, int) else run
        if count < 1:
            raise OutOfRange(f"a run of {count} {kind}s")
        if first < least or first + count > stop:
            _each(kind, (first, first + count - 1), allowed)
        total += count
    if total > len(allowed):
        raise OutOfRange(f"{total} {kind}s are listed, but there are only {len(allowed)}")
    if total > most:
        _within(f"the number of {kind}s in a list", total, most)
