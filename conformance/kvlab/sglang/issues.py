"""The fixes of SGLang's known issues in memory, and the shapes of servers that a release can be driven in."""

from kvattach.patches import Patches
from kvattach.sglang.release import Release
from kvlab.issues import remaining
from kvlab.sglang import fixes, fixes_keys, fixes_pairs, fixes_sessions
from kvlab.sglang.driver import Shape

WITH = {"fix_closing": "fix_retracted"}
"""A fix -> the other one without which alone its issue shows."""


def fix(release: Release, patches: Patches, but: str = "") -> None:
    """Apply all fixes, or all except the named one. An older release lacks the lines that most of them replace."""
    known = [*fixes_keys.FIXES]
    if _has_pools(release):
        known += fixes.FIXES
        known += fixes_sessions.FIXES if release.drives_sessions else ()
        known += fixes_pairs.FIXES if release.pairs else ()
    if release.sessions is not None and not release.drives_sessions:
        known += fixes_sessions.FIXES_BEFORE
    for one in remaining({one.__name__: one for one in known}, but, WITH):
        one(release, patches)


def can_run(release: Release, shape: Shape | None) -> bool:
    """Whether a release can be driven in this shape."""
    return _has_pools(release) and (release.drives_sessions or shape is None or not shape.sessions)


def _has_pools(release: Release) -> bool:
    return bool(release.unified and release.scheduled and release.state_allocator)
