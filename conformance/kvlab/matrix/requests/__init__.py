"""`kvspec matrix`: the vectors and random walks against several releases of an engine, as one table.

check           starts a process for each release
worker, task    what that process does
table           rule by release
findings        what one release shows: explained, told, written as traces
explained.toml  what is known of the findings
"""
