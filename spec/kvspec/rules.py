"""The rules, by their stable ids, and what is raised when one is broken. Their words stand in `rules.json`."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple


class Rule(NamedTuple):
    """One rule: what must hold, why, and which documents it comes from (pull requests by number)."""

    id: str
    name: str
    """Its requirement, in a few words with hyphens between them."""
    statement: str
    reason: str
    origin: str


_TEXT = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))

CODES: dict[str, str] = {
    f"{text['id']}/{name}": sentence for text in _TEXT for name, sentence in text.pop("codes", {}).items()
}
"""The cases of rules, each in a sentence: a finding's code is the rule's id and the name of the case."""

ALL_RULES: dict[str, Rule] = {text["id"]: Rule(**text) for text in _TEXT}
"""Every rule by its id, in the order of the chapters: the memory model's, then those of the policies above it."""

MEMORY_RULES = {name: rule for name, rule in ALL_RULES.items() if name.startswith("MEM-")}
"""The memory model's. They know pools, pages, holders and operations; no request, no session, no tree."""

RULES = {name: rule for name, rule in ALL_RULES.items() if name not in MEMORY_RULES}
"""Those of the policies above it."""


NAMES: dict[str, str] = {rule.name: rule.id for rule in ALL_RULES.values()}
"""A rule's name -> its id."""


def rule_of(code: str) -> str:
    """The id of the rule that a code is a case of; of a rule's id itself that."""
    return code.partition("/")[0]


Wrong = Mapping[str, Iterable[int]]
"""Pool (`pages`, `window pages`, `state slots`, `rows`) -> numbers of it."""


class Violation(Exception):
    """A rule was broken."""

    def __init__(
        self,
        code: str,
        what: str,
        *,
        expected: object = None,
        observed: object = None,
        part: str = "",
        wrong: Wrong | None = None,
        finding: object = None,
    ) -> None:
        """Name the rule or its case, say what happened, and set the expected value against the observed one.

        `part` is the part of the answer that is wrong, in a fixed form (`session.committed_len`); of freed numbers it
        ends in `.early`, `.kept` or `.twice`. `wrong` are the pages, rows and slots that it is about, by pool.
        `finding` is that of the memory checker, where it broke a rule of the memory model.
        """
        super().__init__(f"{code}: {what}")
        self.code = code
        self.rule = ALL_RULES[rule_of(code)]
        self.what = what
        self.part = part
        self.expected = expected
        self.observed = observed
        self.wrong = wrong or {}
        self.finding = finding
