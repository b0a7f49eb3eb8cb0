"""Bounded exhaustive exploration: every reachable state of a small system, breadth-first.

scope      the choices: sizes, requests, operations, and the events that must be reached
moves      all operations that are possible next in a state
canonical  when two states are the same
search     the search tree, and the traces in it
expanding  the states that follow, on one process or several
liveness   LIVE-1, over all states
streams    protocols of the memory level, in all interleavings
lockstep   an implementation beside the specification
report     the output of `kvspec explore`

Not here: operations drawn at random (`fuzzing`), and proofs for any size (`proving`).
"""

from kvconform.exploring.lockstep import compare
from kvconform.exploring.scope import SCOPES, Arrival, Scope
from kvconform.exploring.search import exhaust

__all__ = ["SCOPES", "Arrival", "Scope", "compare", "exhaust"]
