"""The vectors, one folder a topic, and their runner.

files   where the vectors are
runner  a vector against an implementation

Not here: reading of files (`traces`), and reports of failures (`findings`).
"""
