"""The evidence for each rule: checks, proofs, vectors and mutants, found in the code and never listed by hand."""

import ast
import importlib
import inspect
import pkgutil
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from types import ModuleType
from typing import Any, NamedTuple

import kvcheck
import kvconform.exploring
import kvconform.gallery.replaying
import kvconform.oracle
import kvref.scheduler
import kvspec.memory
import kvspec.model
from kvcheck import Checker
from kvconform.gallery.mutants import BUGS
from kvconform.oracle import Model, WatchedState
from kvconform.oracle.meaning import Memory
from kvconform.vectors.files import read_vectors
from kvspec import batch, lengths, pages, states, store, window
from kvspec.events import Refusal
from kvspec.invariants import CHECKS
from kvspec.memory.proofs import books, page, pool
from kvspec.model import OPERATIONS
from kvspec.rules import ALL_RULES, rule_of

COUNTERS = ("checked", "unchecked", "reached")
"""Counters of checks: a rule's id in one of them is not a check."""

PROVED = (*page.INVARIANTS, *pool.INVARIANTS, *books.INVARIANTS, *books.KEPT)
"""The clauses that z3 proves for any size."""


class Evidence(NamedTuple):
    """The evidence that a rule holds, or that a violation is found. Functions by their dotted names."""

    state_check: str | None
    """The check over one whole state."""
    step_checks: list[str]
    """The functions of the model that refuse or report violations by this rule."""
    run_checks: list[str]
    """Functions that check complete runs by this rule."""
    contracts: list[str]
    """Arithmetic functions with a contract about this rule."""
    clauses: list[str]
    """The clauses of it that are proved for any number of pages, rows, requests and sessions, in words."""
    vectors: list[str]
    mutants: list[str]
    """Defects of the gallery that break the rule; first those for which it is the main rule."""

    @property
    def is_checked(self) -> bool:
        """Whether some code checks the rule."""
        return bool(self.state_check or self.step_checks or self.run_checks)


@cache
def evidence() -> dict[str, Evidence]:
    """The evidence for each rule, by its id."""
    model = [*_modules(kvspec.model), *_modules(kvconform.oracle)]
    steps = _named_in(model, *_modules(kvspec.memory), *_modules(kvcheck), store, batch)
    runs = _named_in(_modules(kvconform.exploring), *_modules(kvref.scheduler), kvconform.gallery.replaying)
    contracts = dict(contracts_by_rule())
    exercised = [(vector.name, vector.header.rules) for vector in read_vectors()]
    return {
        rule: Evidence(
            state_check=dotted(CHECKS[rule]) if rule in CHECKS else None,
            step_checks=steps.get(rule, []),
            run_checks=runs.get(rule, []),
            contracts=contracts.get(rule, []),
            clauses=[clause.what for clause in PROVED if clause.rule == rule],
            vectors=[name for name, rules in exercised if rule in rules],
            mutants=[bug.name for bug in BUGS.values() if bug.rule == rule]
            + [bug.name for bug in BUGS.values() if rule in bug.also],
        )
        for rule in ALL_RULES
    }


def dotted(thing: Any) -> str:
    """The dotted name of a function or class."""
    return f"{thing.__module__}.{thing.__qualname__}"


def executable_forms() -> dict[str, str]:
    """Operation by its name in traces -> the function of the model that is its executable form."""
    return {str(operation.__struct_config__.tag): dotted(form) for operation, form in OPERATIONS.items()}


@cache
def events_reported() -> dict[str, list[str]]:
    """Operation -> the kinds of its memory events, collected from all vectors."""
    reported: dict[str, set[str]] = {op: set() for op in executable_forms()}
    for vector in read_vectors():
        listener = _Listener(vector.header.config, Checker)
        model = Model(vector.header.config)
        model.state = WatchedState(vector.header.config, memory=listener)
        for step in vector.steps:
            with suppress(Refusal):
                model.step(step.op)
            reported[str(step.op.__struct_config__.tag)] |= listener.heard()
    return {op: sorted(kinds) for op, kinds in reported.items()}


class _Listener(Memory):
    """Notes the kinds of reported events, and checks nothing."""

    def check(self) -> None:
        """Keep the pending events for `heard`, unchecked."""
        self._flush()

    def heard(self) -> set[str]:
        """The kinds of events since the last call."""
        events, self.pending = self.pending, []
        return {str(event.__struct_config__.tag) for event in events}


def _modules(package: ModuleType) -> list[ModuleType]:
    """A package and its modules."""
    names = [info.name for info in pkgutil.iter_modules(package.__path__)]
    return [package, *(importlib.import_module(f"{package.__name__}.{name}") for name in names)]


def _named_in(package: list[ModuleType], *modules: ModuleType) -> dict[str, list[str]]:
    """Rule -> the functions that name it in a string, except in docstrings and counters."""
    found: dict[str, list[str]] = {}
    for module in (*package, *modules):
        for name, function in _functions(ast.parse(inspect.getsource(module))):
            for rule in dict.fromkeys(_rules_in(function)):
                found.setdefault(rule, []).append(f"{module.__name__}.{name}")
    return found


def _functions(module: ast.Module) -> Iterator[tuple[str, ast.FunctionDef]]:
    """The functions of a module and the methods of its classes, by qualified name."""
    for node in module.body:
        if isinstance(node, ast.FunctionDef):
            yield node.name, node
        elif isinstance(node, ast.ClassDef):
            for member in node.body:
                if isinstance(member, ast.FunctionDef):
                    yield f"{node.name}.{member.name}", member


def _rules_in(function: ast.FunctionDef) -> Iterator[str]:
    for statement in function.body:
        yield from _rules_in_node(statement)


def _rules_in_node(node: ast.AST) -> Iterator[str]:
    if isinstance(node, ast.Constant):
        rule = rule_of(str(node.value))
        if rule in ALL_RULES:
            yield rule
    elif not (isinstance(node, ast.Subscript) and getattr(node.value, "attr", None) in COUNTERS):
        for child in ast.iter_child_nodes(node):
            yield from _rules_in_node(child)


def contracts_by_rule() -> dict[str, list[str]]:
    """Rule -> the functions with a contract about it.

    The contract is about a rule if the function names it, or if the contract uses a function that names it.
    """
    named: dict[str, set[str]] = {}
    promises: dict[str, set[str]] = {}
    places: dict[str, str] = {}
    for module in (pages, lengths, batch, window, states):
        for name, function in _functions(ast.parse(inspect.getsource(module))):
            text = (ast.get_docstring(function) or "").replace(",", " ").split()
            words = {word.strip(".:;()`*") for word in text}
            named[name] = {rule for rule in ALL_RULES if rule in words} | set(_rules_in(function))
            ensures = [part for part in ast.walk(function) if _is_call_of(part, "ensure")]
            promises[name] = {part.id for one in ensures for part in ast.walk(one) if isinstance(part, ast.Name)}
            shared = [part.id for part in function.decorator_list if isinstance(part, ast.Name)]
            promises[name].update(*(promises[decorator] for decorator in shared))
            if function.decorator_list:
                places[name] = f"{module.__name__}.{name}"
    found: dict[str, list[str]] = {}
    for name, place in places.items():
        rules = named[name].union(*(named.get(other, set()) for other in promises[name]))
        for rule in rules:
            found.setdefault(rule, []).append(place)
    return found


def _is_call_of(node: ast.AST, name: str) -> bool:
    return isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == name
