"""What `kvspec run` and `kvspec check` do: vectors and traces of both levels judged, and what comes out printed.

vectors  all vectors that are given, against an implementation or by the law alone
traces   recorded traces, each judged to its end
showing  one trace as a story
releases what `kvspec matrix` found, for other tools

Not here: how one vector is carried out (`vectors`), how a finding is told (`findings`), what the law is (`kvspec`).
"""
