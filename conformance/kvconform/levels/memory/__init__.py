"""The memory level: traces of memory events, recorded by engines and checked by the memory checker (`kvcheck`).

checking    `kvspec check` of one such trace
grouping    the findings of a trace, grouped by rule, place and cause
ledger      the history of the page of a finding
minimise    the shortest part of a trace that shows a group; `slicing` selects pages, `reductions` drops events
rendering   traces and findings for reports
sentences   an event in words
vectors     the findings that each rule makes, and those that it must not make

Not here: reading such a file (`traces/memory.py`), attaching to an engine (`kvattach`), the memory model (`kvspec`).
"""
