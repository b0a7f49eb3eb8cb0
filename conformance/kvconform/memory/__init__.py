"""Traces of memory events, written by engines and judged by the law (`kvspec.memory`)."""
