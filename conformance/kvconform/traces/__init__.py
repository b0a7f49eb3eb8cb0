"""Trace and vector files: how they are read, written and bounded, and the schema of the format.

codec   files and lines: a header, then one operation a line
memory  the same of the memory level: one memory event a line
expect  what an `expect` line of a vector may say
lines   lines of a file that nobody vouches for
bounds  numbers that no memory manager of the given sizes could have written
schema  the format as a JSON Schema

Not here: what a trace means. `kvspec.model` judges it, `vectors/runner.py` lets it.
"""
