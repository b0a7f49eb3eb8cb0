"""Operations that somebody draws, until a rule breaks.

generate  operations worth trying in a given state
machine   a Hypothesis state machine for any implementation
fuzz      the machine, run until something breaks or the time is up
walks     random walks that go on after a finding
summary   what a run has met

Not here: requests as a scheduler serves them (`traffic`), and all states of a small system (`exploring`).
"""
