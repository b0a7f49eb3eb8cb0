"""An implementation with block tables alone: no rows in its sizes, its answers, its figures, its snapshots."""

from typing import Literal

from msgspec.structs import replace

from kvref import Manager
from kvspec.events import Config, ExtendAnswer, Figures, HolderView, ReleaseAnswer, SnapshotAnswer

_PLENTY = 64
"""Rows of the reference below, which never run out."""


class Rowless(Manager):
    """The reference with so many rows, copied at launch, that they are never short; it reports none."""

    lacks = frozenset({"rows"})

    def __init__(self, config: Config) -> None:
        assert not config.num_rows
        super().__init__(replace(config, num_rows=_PLENTY, rows_read="at_launch"))

    def extend(self, reqs: list[tuple[str, int]]) -> ExtendAnswer:
        return replace(super().extend(reqs), rows=None)

    def report(self, mode: Literal["idle", "busy"] = "busy") -> Figures:
        reported = super().report(mode)
        return replace(reported, **{name: None for name in Figures.__struct_fields__ if name.startswith("rows_")})

    def snapshot(self) -> SnapshotAnswer:
        shown = super().snapshot()
        return replace(
            shown,
            rows=None,
            free_rows=None,
            withheld_rows=None,
            requests=_without_rows(shown.requests),
            sessions=_without_rows(shown.sessions),
        )


def _without_rows(views: dict[str, HolderView] | None) -> dict[str, HolderView]:
    return {name: replace(view, row=None) for name, view in (views or {}).items()}


class KeepsPages(Rowless):
    """Forgets the pages of a request that finishes."""

    def finish(self, req: str) -> ReleaseAnswer:
        return replace(super().finish(req), freed=[])
