"""Random operations, until a rule breaks.

style     the differences between runs, and the choices that are drawn
generate  proposals of operations in a given state
refused   proposals that must be refused
swarm     the sizes, the style and the likely operations of one run
corpus    runs that begin as a vector does
run       one run: a fresh implementation, and at the end everything released
reach     rare events, and whether a run has reached them
machine   runs as a Hypothesis state machine, for any implementation; `operations` has its rules
fuzz      one run after the other, until something breaks or the budget is spent
walks     random walks that go on after a finding
summary   the output of `kvspec fuzz`

Not here: requests as a scheduler serves them (`traffic`), and all states of a small system (`exploring`).
"""
