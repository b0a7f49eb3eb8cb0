"""The bug gallery: each defect that the source documents describe, as a small mutant of the reference.

A check that cannot fail shows nothing. Each mutant overrides one decision of `kvref` and leaves all else as it is;
conformance vectors, the fuzzer and replayed traffic must each find it, and blame the rule that it breaks. Rules that no
described defect breaks have a synthetic one, so that each rule is seen to fail.

Not here: the checks that find them (`gallery/finders.py`), and faults injected into real engines (`kvlab`).
"""

from kvconform.gallery.mutants import (
    accounting,
    again,
    chunks_and_batches,
    crowds,
    lengths_and_tails,
    rare,
    rare_store,
    releases,
    rows,
    scheduling,
    sessions,
    speculation,
    states,
    store,
    synthetic,
    windows,
)
from kvconform.gallery.mutants.bug import Bug

_TOPICS = (
    rows,
    lengths_and_tails,
    releases,
    store,
    sessions,
    again,
    chunks_and_batches,
    crowds,
    accounting,
    scheduling,
    speculation,
    windows,
    states,
    rare,
    rare_store,
    synthetic,
)

BUGS: dict[str, Bug] = {bug.name: bug for topic in _TOPICS for bug in topic.BUGS}
"""All defects, by name."""
