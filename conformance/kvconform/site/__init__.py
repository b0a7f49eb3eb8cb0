"""The documentation site: the chapters of `spec/docs`, and pages generated from the code.

prose, linking     the chapters as text, and the tables added below each rule and operation
pages              links, tables of rules and operations, rules, the interface of the code
cases, sources     vectors and defects; the pull requests that all of it comes from
evidence           the evidence for each rule, found in the code
figures, ranges    drawings, and tables in docstrings

Not here: the chapters themselves, and how a trace is drawn (`findings/timeline.py`).
"""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
"""The repository."""
CHAPTERS = ROOT / "spec" / "docs"
"""The normative chapters."""
