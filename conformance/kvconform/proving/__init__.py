"""Proofs of the contracts of the specification, and of the memory model and operations for any size.

prove      `kvspec prove`: starts the provers, and prints the tables of their verdicts
contracts  CrossHair over one function
memory     z3 over events, steps and operations

Not here: the claims themselves, which are in `kvspec.contracts` and `kvspec.memory.proofs`.
"""
