"""Several machines: parts of `kvspec`'s work, spread over a Ray cluster.

cluster    parts go to workers, results come back; a worker that dies is replaced and its part repeated
checking   traces by URL, one task a file, findings grouped over all files by their cause
fuzzing    walks with other seeds, their coverage and findings merged
exploring  parts of the frontier

Ray schedules the parts. The work of a part, and its report, are in the packages of that work.
"""
