"""The memory level: traces of memory events, told by engines and judged by the law (`kvspec.memory`).

writer   how an engine tells events
judge    a trace judged to its end, grouped by cause
shrink   the shortest part of a trace that shows a group: `slicing` says what it may need, `cutting` what can go
telling  traces and findings, told; sentences: an event in words
checking `kvspec check` of one such trace
vectors  what each rule of the law finds, and what it does not

Not here: how such a file is read (`traces/memory.py`), who attaches to an engine (`attach`), and the law itself.
"""
