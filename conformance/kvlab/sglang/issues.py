"""Known issues of SGLang's releases in memory, and the servers that bring them out."""

from collections.abc import Callable
from functools import partial

import msgspec

from kvattach.patches import Patches
from kvattach.sglang.release import Release
from kvlab.drives import Known
from kvlab.issues import Issue, issues_of
from kvlab.sglang import fixes, fixes_sessions
from kvlab.sglang.driver import Shape

RUNS = 60
"""Runs that look for one issue."""


def known(release: Release, drive: Callable[[int, Shape], None]) -> list[Known]:
    """The known issues that can be looked for. `drive` runs a seed with a server of a given shape."""

    def looked_for(issue: Issue) -> Known | None:
        if issue.workload is None:
            return Known(issue)
        shape = msgspec.convert(issues_of("sglang").workload(issue), Shape)
        if not _has_pools(release) or (shape.sessions and release.sessions is None):
            return None
        return Known(issue, lambda seed: drive(seed, shape), partial(fix, release, but=issue.fix), RUNS)

    return [one for issue in issues_of("sglang").at("memory") if (one := looked_for(issue)) is not None]


def fix(release: Release, patches: Patches, but: str = "") -> None:
    """Apply all fixes, or all but the one of this name; an older release has no lines that they could replace."""
    if _has_pools(release):
        for one in fixes.FIXES if release.sessions is None else (*fixes.FIXES, *fixes_sessions.FIXES):
            if one.__name__ != but:
                one(release, patches)


def _has_pools(release: Release) -> bool:
    return bool(release.unified and release.scheduled and release.state_allocator)
