"""The rules by their stable ids, and the exception for a broken one. Their texts are in `rules.json`."""

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import NamedTuple


class Rule(NamedTuple):
    """One rule: what must hold, why, and which documents it comes from (pull requests by number)."""

    id: str
    name: str
    """Its requirement in a few hyphenated words."""
    statement: str
    reason: str
    origin: str


_TEXT = json.loads(Path(__file__).with_suffix(".json").read_text(encoding="utf-8"))

CODES: dict[str, str] = {
    f"{text['id']}/{name}": sentence for text in _TEXT for name, sentence in text.pop("codes", {}).items()
}
"""A finding's code (the rule's id and the name of the case) -> the case in a sentence."""

ALL_RULES: dict[str, Rule] = {text["id"]: Rule(**text) for text in _TEXT}
"""Every rule by its id, in the order of the chapters: first the memory model, then the policies above it."""

MEMORY_RULES = {name: rule for name, rule in ALL_RULES.items() if name.startswith("MEM-")}
"""The rules of the memory model. They speak of pools, pages, holders and operations; not of requests or sessions."""

RULES = {name: rule for name, rule in ALL_RULES.items() if name not in MEMORY_RULES}
"""The rules of the policies above the memory model."""


def rule_of(code: str) -> str:
    """The id of the rule that a code belongs to. A rule's id is its own code."""
    return code.partition("/")[0]


Wrong = Mapping[str, Iterable[int]]
"""Pool (`pages`, `window pages`, `state slots`, `rows`) -> the wrong numbers in it."""


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
        """A violation of the rule or case `code`; `what` says what happened.

        `part` names the wrong part of the answer in a fixed form (`session.committed_len`). For freed numbers it ends
        in `.early`, `.kept` or `.twice`. `wrong` holds the affected pages, rows and slots by pool. `finding` is the
        memory checker's finding, if a rule of the memory model is broken.
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
