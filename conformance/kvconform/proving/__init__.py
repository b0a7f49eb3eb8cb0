"""Proofs: the contracts of the specification, and its partition of rows and pages.

prove      `kvspec prove`: starts the provers, and the tables of what they say
contracts  CrossHair over one function
partition  z3 over one operation

Not here: what is proved, which stands in `kvspec.contracts` and `kvspec.model.partition`.
"""
