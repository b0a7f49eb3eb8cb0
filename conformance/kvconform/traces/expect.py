"""Expectations of a vector: an `expect` line is about the operation on the line before it.

The model checks whether an answer is *allowed*. A vector also gives the *exact* values of its case, worked out by hand.
So errors that the model and an implementation share are found.
"""

from typing import Any, NamedTuple, final

import msgspec

from kvconform.oracle import Model
from kvconform.protocol import ANSWERS
from kvspec.events import Extend, ExtendAnswer, Figures, Operation, SnapshotAnswer
from kvspec.model import looking
from kvspec.pages import expand
from kvspec.rules import RULES


class ExpectedAnswer(Figures):
    """Parts of an answer. Lengths and figures are exact; of lists of pages only the number of pages counts."""

    prefix_len: int | None = None
    protected_len: int | None = None
    freed: int | None = None
    pages: dict[str, int] | None = None
    """Request -> the number of pages that it was given."""
    evicted: int | None = None
    window_pages: dict[str, int] | None = None
    states: dict[str, int] | None = None
    """Request -> the number of state slots that it was given."""
    window_freed: int | None = None
    window_evicted: int | None = None
    states_freed: int | None = None
    states_evicted: int | None = None
    evicted_len: int | None = None


_SHORT = ("pages_short", "rows_short", "window_short", "states_short")
_PER_REQUEST = {"pages": "pages", "window_pages": "window pages", "states": "state slots"}
_WHOSE = ("session_held", "uncached", "sessions", "requests")
"""Figures that differ if turns count as sessions; then only an `answer` compares them."""
_LISTS = ("freed", "evicted", "window_freed", "window_evicted", "states_freed", "states_evicted")


@final
class Expect(msgspec.Struct, tag_field="op", tag="expect", forbid_unknown_fields=True, omit_defaults=True):
    """The values that must hold right after the operation before it; missing fields are not compared."""

    refused: str | None = None
    """The rule by which the operation is refused. Without it the operation must be carried out."""
    pages_short: int | None = None
    """The number of missing pages in a refusal by CAP-1."""
    rows_short: int | None = None
    """The number of missing rows in a refusal by CAP-1."""
    window_short: int | None = None
    """The number of missing window pages in a refusal by CAP-1."""
    states_short: int | None = None
    """The number of missing state slots in a refusal by CAP-1."""
    answer: ExpectedAnswer | None = None
    """The implementation's answer; parts that it leaves out are not compared."""
    lengths: dict[str, tuple[int, int, int] | None] = {}
    """Request or session -> protected, committed and allocated length in tokens; null if it holds nothing."""
    figures: Figures | None = None
    """The accounting figures."""
    same_row: dict[str, str] = {}
    """Request -> the request whose row it now has: `{"r1": "r1"}` kept its own, `{"r2": "r1"}` took over r1's."""
    different_row: dict[str, str] = {}
    """Request -> a request with a row that it must not have got."""


class Mismatch(Exception):
    """An expectation that does not hold."""

    def __init__(self, what: str, expected: object, observed: object) -> None:
        """Name the value that is compared, with its expected and observed value."""
        super().__init__(what)
        self.what = what
        self.expected = expected
        self.observed = observed


def misfit(expect: Expect, op: Operation[Any]) -> str | None:
    """Why `expect` cannot be about `op`, for any answer; `None` if it can."""
    if expect == Expect():
        return "the expect line expects nothing"
    if expect.refused is not None and expect.refused not in RULES:
        return f"unknown rule {expect.refused!r}"
    if expect.refused is not None and expect.answer is not None:
        return "an operation that is refused has no answer to expect"
    if expect.refused != "CAP-1" and any(getattr(expect, name) is not None for name in _SHORT):
        return f"{', '.join(_SHORT)} belong to a refusal by CAP-1"
    if (expect.same_row or expect.different_row) and not isinstance(op, Extend):
        return "rows can only be compared after an extend"
    tag, fields = op.__struct_config__.tag, ANSWERS[type(op)].__struct_fields__
    for name in _named(expect.answer):
        if name not in fields:
            return f"the answer of {tag} has no {name}"
    return None


class Seen(NamedTuple):
    """An implementation's snapshot and figures after an operation."""

    snapshot: SnapshotAnswer
    figures: Figures


NOTHING = Seen(SnapshotAnswer(), Figures())
"""No snapshot was taken."""


def _lengths_seen(shown: SnapshotAnswer, name: str, model: Model) -> tuple[int, int, int] | None:
    """The lengths of a request or a session's slot: the implementation's, or else the model's."""
    due = model.lengths_of(name)
    if shown.requests is None or shown.sessions is None or due is None:
        return due
    request = shown.requests.get(name)
    view = request or shown.sessions.get(name)
    if view is None:
        return None
    # A slot may forget the slots past its tokens in a page that it keeps (rule LEN-1 compares whole pages).
    lengths = view.protected_len, view.committed_len, None if request is None else view.allocated_len
    protected, committed, allocated = (
        right if here is None else here for here, right in zip(lengths, due, strict=True)
    )
    return protected, committed, allocated


class Expectations:
    """Compares a vector's expectations, and remembers the rows that were given."""

    def __init__(self) -> None:
        """Begin before the first operation."""
        self._rows: dict[str, int] = {}

    def check(self, op: Operation[Any], expect: Expect, model: Model, seen: Seen = NOTHING) -> None:
        """Compare right after `op` was carried out or refused, and the model has stepped.

        Lengths and figures are those of the implementation (`seen`), or the model's if it has shown none. Parts that an
        answer leaves out are not compared.

        Raises:
            Mismatch: an expectation does not hold.
        """
        _check_refusal(op, expect)
        for name in _named(expect.answer):
            _check_answer(op, name, getattr(expect.answer, name))
        self._check_rows(op.obs, expect)
        for name, wanted in expect.lengths.items():
            found = _lengths_seen(seen.snapshot, name, model)
            _compare(f"protected, committed and allocated length of {name}", wanted, found)
        if expect.figures is not None:
            figures = looking.figures(model.state)
            for name in _named(expect.figures):
                observed, due = getattr(seen.figures, name), getattr(figures, name)
                moved = model.state.config.turns_count_as == "sessions" and name.endswith(_WHOSE)
                if due is not None and not moved:  # None: there is no such pool, or there are no rows
                    _compare(f"the figure {name}", getattr(expect.figures, name), due if observed is None else observed)

    def _check_rows(self, obs: object, expect: Expect) -> None:
        if not isinstance(obs, ExtendAnswer) or obs.rows is None:
            return
        for one, other in expect.same_row.items():
            if one in obs.rows and other in self._rows:
                _compare(f"the row of {one}", self._rows[other], obs.rows[one])
        for one, other in expect.different_row.items():
            if one in obs.rows and obs.rows[one] == self._rows.get(other):
                raise Mismatch(f"the row of {one}", f"another than {other}'s", obs.rows[one])
        self._rows.update(obs.rows)


def _check_refusal(op: Operation[Any], expect: Expect) -> None:
    if op.refused is None:
        if expect.refused is not None:
            raise Mismatch("the operation", f"refused by {expect.refused}", "carried out")
    elif expect.refused is None:
        raise Mismatch("the operation", "carried out", f"refused: {op.refused.reason or op.refused.rule}")
    elif op.refused.rule not in (None, expect.refused):
        raise Mismatch("the rule of the refusal", expect.refused, op.refused.rule)
    elif any(getattr(op.refused, name) for name in _SHORT):
        for name in _SHORT:
            wanted = getattr(expect, name)
            if wanted is not None:
                _compare(name, wanted, getattr(op.refused, name))


def _check_answer(op: Operation[Any], name: str, wanted: Any) -> None:
    observed = getattr(op.obs, name)
    if observed is None:
        return
    if name in _PER_REQUEST:
        for req, count in wanted.items():
            _compare(f"the number of {_PER_REQUEST[name]} given to {req}", count, len(expand(observed.get(req, ()))))
    elif name in _LISTS:
        _compare(f"the number of pages {name}", wanted, len(expand(observed)))
    else:
        _compare(name, wanted, observed)


def _compare(what: str, wanted: object, found: object) -> None:
    if wanted != found:
        raise Mismatch(what, wanted, found)


def _named(part: msgspec.Struct | None) -> list[str]:
    """The fields that are set."""
    return [] if part is None else [name for name in part.__struct_fields__ if getattr(part, name) is not None]
