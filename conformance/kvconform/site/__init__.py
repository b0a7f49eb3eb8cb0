"""The documentation site: the chapters of `spec/docs`, and what is generated beside them from the code."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[3]
"""The repository."""
CHAPTERS = ROOT / "spec" / "docs"
"""The normative chapters."""
