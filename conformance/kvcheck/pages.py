"""A page in use: its holders, names, content and tables. Pages with the same history form a group."""

from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from operator import attrgetter
from typing import Any, cast

import msgspec

from kvcheck.finding import Writer
from kvspec.contracts import ensure
from kvspec.memory.events import Label, Page

HOLE: Page = "\0hole"
"""An empty entry of a table, before entries with pages."""

NOTHING: dict[Any, Any] = {}
"""The common empty dictionary of holders, names and tables. It stays empty."""

FEW = 4
"""The most pieces of a page's content, or tables of a page, that are examined one by one."""

_START = attrgetter("start")


@ensure(lambda start, first, result: result[0] >= start and result[0] >= first and result[0] in (start, first))
@ensure(lambda stop, last, result: result[1] <= stop and result[1] <= last and result[1] in (stop, last))
@ensure(lambda start, offset, result: result[2] - result[0] == offset - start)
def clip(start: int, stop: int, offset: int, first: int, last: int) -> tuple[int, int, int]:
    """The part of slots `start` to `stop` within `first` to `last`, empty if it ends before it starts; and its offset.

    A slot keeps the offset that it has in its label.
    """
    begin = max(start, first)
    return begin, min(stop, last), offset + begin - start


class Content(msgspec.Struct, order=True, gc=False):
    """The content of slots `start` to `stop` of a page: a label's slots from `offset` on. It can grow in its page."""

    start: int
    stop: int
    label: Label | None
    """The label; `None`: not reported."""
    offset: int = 0
    failed: bool = False
    """Whether it was computed from slots that were left unwritten."""

    def cut(self, start: int, stop: int) -> "Content":
        """The part within `start` to `stop`."""
        first, last, offset = clip(self.start, self.stop, self.offset, start, stop)
        return Content(first, last, self.label, offset, self.failed)

    def shifted(self, by: int) -> "Content":
        """The same content, `by` slots further."""
        return Content(self.start + by, self.stop + by, self.label, self.offset, self.failed)


class Plan(msgspec.Struct, gc=False):
    """Names with promised content that `writer` must still write; `None`: any holder of the page."""

    writer: str | None
    keys: dict[str, None] = {}


class Promise(msgspec.Struct, gc=False):
    """The content of a page's first slots that a name promises, and its plan if it is not written yet."""

    meant: tuple[Content, ...]
    plan: Plan | None = None


class Link(msgspec.Struct, frozen=True, gc=False):
    """The entry of a page in a table: its index, and the number of operations that had begun when it was entered."""

    index: int
    since: int


class PageState(msgspec.Struct, gc=False):
    """One page that is in use, or was in use and may still be touched.

    There may be many such pages. So empty fields take no room, the garbage collector skips them, and pages that were
    taken together share the dictionary with their only holder. A dictionary with a single entry is replaced; only a
    larger one is changed in place.
    """

    holders: dict[str, int] = {}
    """Holder -> the number of its references."""
    pins: dict[str, int] = {}
    keys: dict[str, Promise] = {}
    plans: dict[str | None, Plan] | None = None
    """Writer -> its plan; `None`: nothing was ever planned."""
    tables: dict[str, Link] = {}
    """Table -> the page's entry there."""
    looked: dict[str, None] | None = None
    """Tables through which it may have been checked since its last change; `None`: any."""
    left: tuple[tuple[str, int, int, int], ...] = ()
    """Former tables: page index, and the numbers of operations that had begun when the entry was made and removed."""
    content: tuple[Content, ...] | list[Content] = ()
    """The contents in order of slots; missing slots were not written since the page was taken. A tuple if all was
    written at once, else a list."""
    writer: Writer | None = None
    """The operation that last wrote the page; `None`: unknown."""

    @property
    def kind(self) -> str:
        """Whether the page counts as held, cached (it has a name) or free."""
        return "held" if self.holders or self.pins else "cached" if self.keys else "free"

    def plan(self, writer: str | None, keys: Iterable[str]) -> None:
        """Note that `writer` must still write the promised content of names."""
        self.plans = self.plans or {}
        for key in keys:
            plan = self.keys[key].plan = self.plans.setdefault(writer, Plan(writer))
            plan.keys[key] = None

    def unplan(self, key: str) -> None:
        """End the plan of a name."""
        plan, self.keys[key].plan = self.keys[key].plan, None
        if plan is not None and self.plans is not None:
            del plan.keys[key]
            if not plan.keys:
                del self.plans[plan.writer]

    def hand_on(self, old: str, new: str) -> None:
        """Move one holder's plans to another. The smaller set of names joins the larger."""
        if self.plans and old in self.plans:
            plans = self.plans.pop(old), self.plans.pop(new, Plan(new))
            fewer, self.plans[new] = sorted(plans, key=lambda plan: len(plan.keys))
            self.plans[new].writer = new
            self.plan(new, fewer.keys)

    def pieces(self, start: int, stop: int) -> Iterator[Content | int]:
        """The content of slots `start` to `stop`, in order. A number is the first of a range of unwritten slots."""
        contents = self.content
        for content in contents if len(contents) <= FEW else contents[_overlap(contents, start, stop)]:
            if content.stop <= start:
                continue
            if content.start >= stop:
                break
            if content.start > start:
                yield start
            yield content if start <= content.start and content.stop <= stop else content.cut(start, stop)
            start = content.stop
        if start < stop:
            yield start

    def erase(self, start: int, stop: int) -> None:
        """Remove the content of slots that were not written after all."""
        self.content = content = self.content if isinstance(self.content, list) else [*self.content]
        near = _overlap(content, start, stop)
        parts = [part for old in content[near] for part in (old.cut(0, start), old.cut(stop, old.stop))]
        content[near] = [part for part in parts if part.start < part.stop]

    def put(self, new: Sequence[Content]) -> None:
        """Write slots, in order; content that continues the last label joins it."""
        content = self.content
        if not (content and new):
            self.content = content or (*new,)
            return
        last, first = content[-1], new[0]
        if last.stop > first.start:
            for one in new:
                self.erase(one.start, one.stop)
            for one in new:
                insort(cast("list[Content]", self.content), one, key=_START)
            return
        if (last.stop, last.label, last.failed) == (first.start, first.label, first.failed) and (
            first.offset - last.offset == last.stop - last.start
        ):
            last.stop, new = first.stop, new[1:]
        if isinstance(content, list):
            content.extend(new)
        elif new:
            self.content = [*content, *new]


def _overlap(content: Sequence[Content], start: int, stop: int) -> slice:
    """The pieces that overlap slots `start` to `stop`, and perhaps the piece before."""
    first = max(bisect_right(content, start, key=_START) - 1, 0)
    return slice(first, max(first, bisect_left(content, stop, key=_START)))


class Stretch(msgspec.Struct, eq=False, gc=False):
    """Successive entries of a table."""

    index: int
    """The page index of the first entry."""
    since: int
    """The number of operations that had begun when the entries were made."""
    pages: list[Page]
    indices: dict[Page, int] | None = None
    """Page -> its index, computed at the first call of `index_of`."""

    def index_of(self, number: Page) -> int:
        """The index of one of the pages."""
        if self.indices is None:
            self.indices = dict(zip(self.pages, count(self.index), strict=False))
        return self.indices[number]


class PageGroup(msgspec.Struct, frozen=True, eq=False, gc=False):
    """The common state of pages with the same history since they were taken.

    Only labels and names are kept per page. These dictionaries may have entries of pages that have left the group.
    """

    holders: dict[str, int]
    """The holders; each has one reference."""
    tables: dict[str, Stretch] = {}
    left: tuple[tuple[str, Stretch, int], ...] = ()
    """Former tables: the entries, and the number of operations that had begun when they were removed."""
    whole: dict[Page, Label | None] = {}
    """Page -> the label with which the whole page was written, if a page has one label."""
    units: list[Label | None] = []
    """For a single page with several labels: those of its first units, which were written."""
    named: dict[Page, str] = {}
    """Page -> its only key, which promises the whole content of the page."""
    writer: Writer | None = None

    @property
    def kind(self) -> str:
        """Whether the pages count as held, cached or free."""
        return "held" if self.holders else "cached" if self.named else "free"

    def split(self, number: Page, unit: int) -> PageState:
        """The individual state of one of the pages."""
        labels = [self.whole[number]] if self.whole else self.units
        content = tuple(Content(unit * index, unit * index + unit, label) for index, label in enumerate(labels))
        return PageState(
            {**self.holders},
            keys={self.named[number]: Promise(content)} if self.named else NOTHING,
            tables={name: Link(stretch.index_of(number), stretch.since) for name, stretch in self.tables.items()},
            left=tuple((name, run.index_of(number), run.since, until) for name, run, until in self.left),
            content=content,
            writer=self.writer,
        )
