"""The combinations of factors of the vectors that `pairwise` writes: for every two values one that has both."""

from typing import Any, NamedTuple

from covertable import make  # type: ignore[import-untyped]

FACTORS: dict[str, list[Any]] = {
    "way": ["finish", "retract", "abort", "close", "preempt"],
    "in_flight": [0, 1, 2, 3],
    "readers": ["all", "oldest", "newest"],
    "page_size": [1, 2, 16, 64],
    "pool": ["plain", "uncached", "window", "states"],
    "batch": [1, 2, 3],
    "session": ["none", "first", "later"],
    "phase": ["chunk", "decode", "drafts"],
    "mates": ["plain", "turns"],
    "mate": ["stays", "leaves"],
    "comeback": ["runs", "aborted"],
}
CLOSER = [
    {"fields": ["way", "session", "in_flight", "readers"], "strength": 3},
    {"fields": ["phase", "batch", "pool"], "strength": 3},
    {"fields": ["way", "phase", "pool"], "strength": 3},
    {"fields": ["mates", "batch", "session"], "strength": 3},
    {"fields": ["comeback", "session", "phase"], "strength": 3},
    {"fields": ["mate", "way", "in_flight"], "strength": 3},
]
"""Factors of which every three values meet."""


class Case(NamedTuple):
    """One combination of the factors."""

    way: str
    """The way in which A leaves; `close` and `preempt` need a session."""
    in_flight: int
    """Launches in flight when it does."""
    readers: str
    """Which of them read A's row."""
    page_size: int
    pool: str
    """The pools besides a prefix store: none, or a hybrid pool; `uncached` has no prefix store."""
    batch: int
    """Requests in A's launches."""
    session: str
    """Whether A is a turn, and which."""
    phase: str
    """The work of A's launches; with `drafts` the last of them is a speculative step."""
    mates: str
    """Whether those beside A are plain requests, or turns that bring the rows of sessions of their own."""
    mate: str
    """Whether one of those beside A leaves right after it, while A's row may be withheld."""
    comeback: str
    """Whether A, when it comes again, runs at once, or is first aborted between its match and its run."""

    @property
    def name(self) -> str:
        """The name of the vector."""
        whose = {"none": "plain", "first": "first_turn", "later": "later_turn"}[self.session]
        flights = f"{self.in_flight}_in_flight" + ("" if self.readers == "all" else f"_{self.readers}")
        beside = ("_turns" if self.mates == "turns" else "") + ("_mate_leaves" if self.mate == "leaves" else "")
        again = "_aborted" if self.comeback == "aborted" else ""
        return (
            f"{self.way}_{whose}_{self.phase}_{flights}_batch_{self.batch}{beside}{again}_{self.pool}_p{self.page_size}"
        )

    @property
    def description(self) -> str:
        """The vector in a sentence."""
        who = {"none": "A request", "first": "A session's first turn", "later": "A session's second turn"}[self.session]
        way = {
            "finish": "finishes",
            "retract": "is retracted",
            "abort": "is aborted",
            "close": f"{'is aborted' if self.phase == 'chunk' else 'finishes'} after its session was closed",
            "preempt": "finishes, and its session's memory is taken",
        }[self.way]
        when = {"chunk": "amid its prompt", "decode": "while decoding", "drafts": "after a speculative step"}[
            self.phase
        ]
        flights = {
            0: "nothing in flight",
            1: "one launch in flight, which reads its row",
            2: "two launches in flight",
            3: "three launches in flight",
        }[self.in_flight]
        if self.in_flight > 1:
            flights += {"all": ", all of which read", "oldest": ", the oldest of which reads"}.get(
                self.readers, ", the newest of which reads"
            )
            flights += " its row"
        beside = {1: "alone in its launches", 2: "beside another", 3: "beside two others"}[self.batch]
        if self.mates == "turns":
            beside += f" ({'a resumed turn' if self.batch < 3 else 'resumed turns'} in its first batch)"
        then = ", and so does one of the others" if self.mate == "leaves" else ""
        again = ", once it was aborted before it ran" if self.comeback == "aborted" else ""
        pool = {
            "plain": "",
            "uncached": ", without a prefix store",
            "window": ", with a sliding window",
            "states": ", with recurrent states",
        }[self.pool]
        return (
            f"{who}, {beside}, {way} {when}, with {flights}{then}; its row, if it is let go, can be had again "
            f"when nothing reads it, and its name can be used again{again}. Pages of {self.page_size}{pool}."
        )


def _possible(row: dict[str, Any]) -> bool:
    """Whether the values go together; those that are not chosen yet may still be any."""
    way, phase = row.get("way"), row.get("phase")
    return not (
        (way in ("close", "preempt") and row.get("session") == "none")
        or (way in ("finish", "preempt") and phase == "chunk")
        or (row.get("pool") == "states" and phase == "drafts")
        or (row.get("in_flight") in (0, 1) and row.get("readers") in ("oldest", "newest"))
    )


NEEDED = {
    Case("retract", 1, "all", 2, "uncached", 2, "none", "chunk", "plain", "stays", "runs"),
    Case("finish", 0, "all", 1, "plain", 1, "first", "drafts", "plain", "stays", "aborted"),
}
"""Of more than three factors at once: a plain request retracted amid its chunks without a prefix store; a turn whose
match frees a tail of drafts, aborted before its run."""


def cases() -> list[Case]:
    """Combinations in which every two values that go together meet."""
    pairs = [["way", "session"], ["way", "phase"], ["pool", "phase"], ["in_flight", "readers"]]
    constraints = [{"operator": "fn", "requires": pair, "evaluate": _possible} for pair in pairs]
    made = {Case(**row) for row in make(FACTORS, constraints=constraints, sub_models=CLOSER)}
    return sorted(made | NEEDED)
