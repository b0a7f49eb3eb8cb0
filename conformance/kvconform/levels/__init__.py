"""The two levels of the specification: operations (`requests`) and memory events (`memory`)."""
