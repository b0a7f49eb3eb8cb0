"""Implementations that carry everything out, and report nothing of it, or little."""

from typing import Any

from kvref import Manager
from kvspec.events import Answer, EvictAnswer, HolderView, SnapshotAnswer


def silenced(name: str) -> Any:
    def method(self: Manager, *args: Any) -> Answer:
        answer: Answer = getattr(Manager, name)(self, *args)
        return EvictAnswer([]) if isinstance(answer, EvictAnswer) else type(answer)()

    return method


OPERATIONS = (
    *("open_session", "submit", "match_prefix", "extend", "decode", "verify", "launch", "complete", "cache_unfinished"),
    *("finish", "retract", "abort", "close_session", "preempt", "evict", "report", "snapshot", "swa_evict"),
    *("take_state", "free_state"),
)

Silent = type("Silent", (Manager,), {name: silenced(name) for name in OPERATIONS})
"""Answers nothing."""


class OnlyHolders(Manager):
    """Of a snapshot it reports the holders alone, and of each only the fields that `reports` names."""

    reports: tuple[str, ...] = ()

    def snapshot(self) -> SnapshotAnswer:
        shown = super().snapshot()
        return SnapshotAnswer(requests=self._cut(shown.requests), sessions=self._cut(shown.sessions))

    def _cut(self, views: dict[str, HolderView] | None) -> dict[str, HolderView]:
        return {
            who: HolderView(**{part: getattr(view, part) for part in self.reports})
            for who, view in (views or {}).items()
        }


class OnlyLengths(OnlyHolders):
    """Has no rows to report."""

    reports = ("protected_len", "committed_len", "allocated_len")


class OnlyPages(Manager):
    """Of a snapshot it reports which pages are free and which are cached."""

    def snapshot(self) -> SnapshotAnswer:
        shown = super().snapshot()
        return SnapshotAnswer(free_pages=shown.free_pages, store_pages=shown.store_pages)


class CommitsOneMore(OnlyLengths):
    """Reports a committed length that is wrong."""

    def _cut(self, views: dict[str, HolderView] | None) -> dict[str, HolderView]:
        cut = super()._cut(views)
        for view in cut.values():
            assert view.committed_len is not None
            view.committed_len -= 1
        return cut
