"""`kvspec matrix`: the vectors and random walks against several releases of an engine, as one table.

command         what is asked for, and the table
worker, task    one release, in a process of its own
findings        what one release shows: explained, told, written as traces
explained.toml  what is known of the findings
"""
