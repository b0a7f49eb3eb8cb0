"""`kvspec matrix`: releases of engines, checked at two levels.

requests  vectors and random walks through an engine's adapter
memory    an engine's own scheduler, driven with hooks
worker    one release at one level, in a process of its own
check     starts the worker, unless the result is kept from an earlier run
report    the result of one release at one level
table     the results of all releases, for a terminal
outcome   the results of all releases, for other tools
"""
