"""More machines than one: work that `kvspec` does in parts, spread over a cluster of Ray.

cluster    parts go to workers, results come back; a worker that dies is replaced and its part done again
checking   traces by URL, one task a file, findings grouped over all files by their cause
fuzzing    walks with other seeds, what they reached and found put together
exploring  parts of the frontier

Ray decides where what runs. What is done in a part, and what is told of it, stands in the rooms that it is about.
"""
