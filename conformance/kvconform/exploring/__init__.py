"""Bounded exhaustive exploration: every reachable state of a small system, breadth-first.

scope      what may happen: sizes, requests, operations, and what must be reached
moves      everything that may happen next in a state
canonical  when two states are the same
search     the search, on one process or several
liveness   LIVE-1, over all states
streams    protocols of the memory level, in all interleavings
lockstep   an implementation beside the specification
report     what `kvspec explore` prints

Not here: operations drawn at random (`fuzzing`), and proofs for any size (`proving`).
"""

from kvconform.exploring.lockstep import compare
from kvconform.exploring.scope import SCOPES, Arrival, Scope
from kvconform.exploring.search import exhaust

__all__ = ["SCOPES", "Arrival", "Scope", "compare", "exhaust"]
