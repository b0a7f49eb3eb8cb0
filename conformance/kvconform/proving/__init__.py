"""Proofs: the contracts of the specification, the law for any size, and what each operation means by it.

prove      `kvspec prove`: starts the provers, and the tables of what they say
contracts  CrossHair over one function
law        z3 over events, steps and operations

Not here: what is proved, which stands in `kvspec.contracts` and `kvspec.memory.proofs`.
"""
