"""The file of the rules has all that is said of each, once."""

import json
import re
from importlib.resources import files

import pytest

from kvspec.rules import ALL_RULES, MEMORY_RULES, RULES, Rule, Violation

FILE = json.loads(files("kvspec").joinpath("rules.json").read_text(encoding="utf-8"))


def test_each_id_names_one_rule() -> None:
    assert [rule["id"] for rule in FILE] == [*ALL_RULES]


@pytest.mark.parametrize("rule", FILE, ids=lambda rule: rule["id"])
def test_each_rule_has_its_id_and_three_texts(rule: dict[str, str]) -> None:
    assert tuple(rule) == Rule._fields
    assert re.fullmatch(r"MEM-[A-Z]+|[A-Z]+-\d+", rule["id"])
    for text in (rule["statement"], rule["reason"]):
        assert text.endswith(".") and text == " ".join(text.split())
    assert re.fullmatch(r"\d+(, \d+)*", rule["origin"])


def test_the_rules_of_the_law_come_first() -> None:
    assert [*MEMORY_RULES, *RULES] == [*ALL_RULES]


def test_a_violation_knows_its_rule() -> None:
    violation = Violation("MEM-NAME", "two contents", observed=3)
    assert violation.rule == MEMORY_RULES["MEM-NAME"]
    assert (str(violation), violation.observed, violation.expected) == ("MEM-NAME: two contents", 3, None)
    with pytest.raises(KeyError):
        Violation("MEM-1", "there is no such rule")
