"""`kvspec matrix`: releases of engines, checked at both levels.

requests  vectors and random walks through an engine's adapter
memory    an engine's own scheduler, driven with hooks
outcome   both as one report
"""
