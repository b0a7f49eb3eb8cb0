"""The file of the rules has all that is said of each, once."""

import json
import re
from importlib.resources import files
from typing import Any

import pytest

from kvspec.rules import ALL_RULES, CODES, MEMORY_RULES, RULES, Rule, Violation

FILE = json.loads(files("kvspec").joinpath("rules.json").read_text(encoding="utf-8"))


def test_each_id_names_one_rule() -> None:
    assert [rule["id"] for rule in FILE] == [*ALL_RULES]


@pytest.mark.parametrize("rule", FILE, ids=lambda rule: rule["id"])
def test_each_rule_has_its_id_three_texts_and_its_cases(rule: dict[str, Any]) -> None:
    cases = rule.get("codes", {})
    assert tuple(rule) == (*Rule._fields, *["codes"] * bool(cases)) and bool(cases) == (rule["id"] in MEMORY_RULES)
    assert re.fullmatch(r"MEM-[A-Z]+|[A-Z]+-\d+", rule["id"])
    assert all(re.fullmatch(r"[a-z]+(-[a-z]+)*", name) for name in (rule["name"], *cases))
    assert {CODES[f"{rule['id']}/{name}"] for name in cases} == {*cases.values()}
    for text in (rule["statement"], rule["reason"], *cases.values()):
        assert text.endswith(".") and text == " ".join(text.split())
    assert re.fullmatch(r"\d+(, \d+)*", rule["origin"])


def test_each_name_is_that_of_one_rule() -> None:
    assert len({rule.name for rule in ALL_RULES.values()}) == len(ALL_RULES)


def test_the_rules_of_the_memory_model_come_first() -> None:
    assert [*MEMORY_RULES, *RULES] == [*ALL_RULES]


def test_a_violation_of_a_case_knows_its_rule_too() -> None:
    violation = Violation("MEM-NAME/free", "page 1 of kv")
    assert (violation.rule, violation.code) == (MEMORY_RULES["MEM-NAME"], "MEM-NAME/free")


def test_a_violation_knows_its_rule() -> None:
    violation = Violation("MEM-NAME", "two contents", observed=3)
    assert violation.rule == MEMORY_RULES["MEM-NAME"]
    assert (str(violation), violation.observed, violation.expected) == ("MEM-NAME: two contents", 3, None)
    with pytest.raises(KeyError):
        Violation("MEM-1", "there is no such rule")
