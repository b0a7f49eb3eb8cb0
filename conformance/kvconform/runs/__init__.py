"""`kvspec run`, `kvspec check` and `kvspec show`: vectors and traces of both levels are checked and reported.

vectors       vectors against an implementation, or those of the memory level by the memory checker
traces        recorded traces, each checked to its end
side_by_side  several traces at a time
showing       one trace, event by event
card          the report card of an implementation
exporting     vectors and their answer keys as files

Not here: running one vector (`vectors`), rendering a finding (`findings`), the rules themselves (`kvspec`).
"""
