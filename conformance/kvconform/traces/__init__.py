"""Trace and vector files: how they are read, written and bounded, and the schema of the format.

codec   files and lines: a header, then one operation a line
memory  the same of the memory level: one memory event a line
merging files of several hosts as one trace
expect  the `expect` lines of a vector
lines   lines of an untrusted file
bounds  numbers that no memory manager of the given sizes could have written
schema  the format as a JSON Schema

Not here: the meaning of a trace, which `kvspec.model` checks, called by `vectors/runner.py`.
"""
