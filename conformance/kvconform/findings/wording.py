"""Wording that reports and the command line share, and the printing of a rule."""

import textwrap
from collections.abc import Iterable

from rich.console import Console
from rich.text import Text

from kvspec.rules import ALL_RULES, CODES, Rule, rule_of

OF_SGLANG_JAX = ("994",)
"""The source documents that are pull requests of sglang-jax; all others are SGLang's."""

NAMES: dict[str, str] = {rule.name: rule.id for rule in ALL_RULES.values()}
"""A rule's name -> its id."""


def show_rule(console: Console, rule: Rule) -> None:
    """Print one rule with its reason and origin, and the codes of its cases."""
    console.print(Text(f"{rule.id} {rule.name}", "bold"))
    cases = (f"{code}: {case}" for code, case in CODES.items() if rule_of(code) == rule.id)
    for line in (rule.statement, f"Why: {rule.reason}", f"Origin: {origin(rule)}", *cases):
        console.print(Text(filled(line, console.width, "  ", "  ")), soft_wrap=True)


def origin(rule: Rule) -> str:
    """The documents that a rule comes from."""
    return pull_requests(rule.origin.split(", "))


def pull_requests(numbers: Iterable[str]) -> str:
    """Source documents in words: pull requests of SGLang, or of its port to JAX."""
    return ", ".join(
        f"{'sglang-jax' if number in OF_SGLANG_JAX else 'SGLang'} pull request {number}" for number in numbers
    )


def printable(text: str) -> str:
    """Text with its control characters escaped: names come from files, and are printed on a terminal."""
    return "".join(char if char.isprintable() else repr(char)[1:-1] for char in text)


def counted(number: int, noun: str) -> str:
    """A number with its noun: `1 rule`, `1,587 times`."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def filled(text: str, width: int, first: str = "", further: str = "") -> str:
    """Text wrapped at `width` columns. `first` indents the first line, `further` the others. No word is broken."""
    return textwrap.fill(
        text,
        max(width, len(further) + 24),
        initial_indent=first,
        subsequent_indent=further,
        break_long_words=False,
        break_on_hyphens=False,
    )
