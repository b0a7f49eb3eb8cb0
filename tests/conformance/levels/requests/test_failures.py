"""A crash is reported with the rule by which the operation had to be carried out, or refused."""

from typing import Any

import pytest

from kvconform.findings.finding import Place
from kvconform.levels.requests.minimise import Shortest
from kvconform.levels.requests.rendering import finding_of
from kvconform.vectors.runner import try_out
from kvref.manager import Manager
from kvspec.events import Config, Extend, ExtendAnswer, MatchPrefix, Operation, Submit


class Crashes(Manager):
    """Fails at every prefill."""

    def extend(self, reqs: list[tuple[str, int]]) -> ExtendAnswer:
        """Fail."""
        raise ValueError(f"no {reqs}")


@pytest.mark.parametrize(("tokens", "rule"), [(4, "OP-1"), (40, "CAP-1")])
def test_a_crash_names_the_rule_of_the_operation(tokens: int, rule: str) -> None:
    """One that fits had to be carried out; one that does not had to be refused for lack of room."""
    config = Config(page_size=2, num_pages=6, num_rows=2, max_context_len=64)
    operations: list[Operation[Any]] = [Submit("r", [0] * tokens), MatchPrefix("r"), Extend([("r", tokens)])]
    shown = try_out(operations, config, Crashes)
    assert shown is not None
    finding = finding_of(shown.finding, config, Place("here"), Shortest(shown, "Three operations."))
    assert finding.kind == "failure"
    assert finding.rule is not None
    assert finding.rule.id == rule
    assert finding.title == f"The implementation failed against {rule}"
