"""The rules, by their stable ids, and what is raised when one is broken. Their words stand in `rules.json`."""

import json
from pathlib import Path
from typing import NamedTuple


class Rule(NamedTuple):
    """One rule: what must hold, why, and which documents it comes from (pull requests by number)."""

    id: str
    statement: str
    reason: str
    origin: str


ALL_RULES: dict[str, Rule] = {
    words["id"]: Rule(**words) for words in json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))
}
"""Every rule by its id, in the order of the chapters: the law's, then those of the policies above it."""

MEMORY_RULES = {name: rule for name, rule in ALL_RULES.items() if name.startswith("MEM-")}
"""The law's. They know pools, pages, holders and operations; no request, no session, no tree."""

RULES = {name: rule for name, rule in ALL_RULES.items() if name not in MEMORY_RULES}
"""Those of the policies above it."""


class Violation(Exception):
    """A rule was broken."""

    def __init__(self, rule: str, what: str, *, expected: object = None, observed: object = None) -> None:
        """Name the rule, say what happened, and set what was expected against what was observed."""
        super().__init__(f"{rule}: {what}")
        self.rule = ALL_RULES[rule]
        self.what = what
        self.expected = expected
        self.observed = observed
