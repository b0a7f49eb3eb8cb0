"""Traces as an engine writes them: headers, a method for each memory event, and the thread that writes the files.

header      the first line of a memory-level file
writer      `TraceWriter`, for engines
sink        the thread, and the files that it fills
repeats     what an engine that stands still repeats, and the files have once
operations  lines of the request level

A leaf: it needs msgspec, zstandard and the types of the specification. Not here: reading (`kvconform.traces`).
"""
