"""Mutants of the tiered engine: defects of the memory level, which no operation of the request level can show.

bug        one mutant, and the table of all
transfers  mutants of the transfers between device and host
engine     mutants of passes, tree and pages

Each changes a line or two of `kvref.tiers`. Random walks of its driver find all of them. For each mutant the shortest
part of a walk that shows it is a vector with the mutant's name.
"""

from kvconform.gallery.tiers import engine, transfers  # these modules enter their mutants into the table
from kvconform.gallery.tiers.bug import TIER_BUGS, TierBug

__all__ = ["TIER_BUGS", "TierBug", "engine", "transfers"]
