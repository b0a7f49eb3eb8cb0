"""One function's contracts put to CrossHair, in a process of their own.

    python -m kvconform.prove_contracts list kvspec.lengths kvspec.pages
    python -m kvconform.prove_contracts prove kvspec.lengths:resume SECONDS 1 2 16 64 any

Contracts are attached to functions only where `KVSPEC_CONTRACTS` is `1` while they are imported, so `kvspec prove` starts
this module with it set. Each verdict is one line of JSON on standard output.
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from itertools import chain
from time import perf_counter
from types import ModuleType
from typing import Any

import icontract
import msgspec
from crosshair.condition_parser import ConditionExpr, Conditions, IcontractParser
from crosshair.core_and_libs import MessageType, run_checkables
from crosshair.core import ConditionCheckable
from crosshair.fnutil import FunctionInfo
from crosshair.options import DEFAULT_OPTIONS, AnalysisKind

ANY = 0
"""Stands for a page size that the solver does not know."""


class Verdict(msgspec.Struct):
    """What became of all contracts of one function at one page size."""

    function: str
    page_size: int
    """0: left open, any page size at least 1."""
    conditions: int
    outcome: str
    """`confirmed`, `unconfirmed` or `refuted`."""
    detail: str
    """The condition that was refuted, with a counterexample."""
    seconds: float


def functions(module: ModuleType) -> dict[str, Callable[..., Any]]:
    """The functions of a module that carry contracts."""
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and hasattr(value, "__postconditions__")
    }


def lay_bare(modules: list[ModuleType]) -> None:
    """Let calls between functions check what they require and nothing else.

    icontract's own checks keep a set of the calls in progress, which symbolic execution cannot follow.
    """
    for module in modules:
        for name, value in list(vars(module).items()):
            if inspect.isfunction(value) and hasattr(value, "__postconditions__"):
                setattr(module, name, _guarded(value))


def _guarded(function: Any) -> Callable[..., Any]:
    body = inspect.unwrap(function)
    parameters = list(inspect.signature(body).parameters)
    (preconditions,) = function.__preconditions__ or ([],)
    guards = [(contract.condition, contract.condition_args) for contract in preconditions]

    @wraps(body)
    def guarded(*args: Any, **kwargs: Any) -> Any:
        given = dict(zip(parameters, args, strict=False), **kwargs)
        for condition, names in guards:
            if not condition(**{name: given[name] for name in names}):
                raise icontract.ViolationError(f"a call breaks what {body.__name__} requires")
        return body(*args, **kwargs)

    return guarded


def prove(name: str, function: Any, page_size: int, seconds: float) -> Verdict:
    """Put every condition of `function` to CrossHair, with the page size as a constant unless it is `ANY`."""
    started = perf_counter()
    about = FunctionInfo.from_fn(function)
    conditions = IcontractParser().get_fn_conditions(about)
    assert conditions is not None
    if page_size != ANY:
        conditions = _at(conditions, page_size)
    options = DEFAULT_OPTIONS.overlay(
        # asserts: CrossHair need not look for contracts in what is called
        analysis_kind=[AnalysisKind.asserts],
        per_condition_timeout=seconds,
        report_all=True,
    )
    outcomes = set()
    details = []
    for condition in conditions.post:
        checkable = ConditionCheckable(about, options, replace(conditions, post=[condition]))
        for message in run_checkables([checkable]):
            outcomes.add(_OUTCOMES.get(message.state, "refuted"))
            if message.state not in _OUTCOMES:
                details.append(f"{condition.expr_source}: {message.message}")
    outcome = next((worst for worst in ("refuted", "unconfirmed") if worst in outcomes), "confirmed")
    return Verdict(
        name, page_size, len(conditions.post), outcome, "\n".join(details), round(perf_counter() - started, 3)
    )


_OUTCOMES = {MessageType.CONFIRMED: "confirmed", MessageType.CANNOT_CONFIRM: "unconfirmed"}


def _at(conditions: Conditions, page_size: int) -> Conditions:
    """The same contract of the function that has this page size built in."""
    function = conditions.fn

    @wraps(function)
    def fixed(*args: Any, **kwargs: Any) -> Any:
        return function(*args, page_size=page_size, **kwargs)

    def with_page_size(condition: ConditionExpr) -> ConditionExpr:
        evaluate = condition.evaluate
        assert evaluate is not None

        def evaluate_with(values: Mapping[str, object]) -> bool:
            return evaluate({**values, "page_size": page_size})

        return replace(condition, evaluate=evaluate_with)

    signature = conditions.sig
    parameters = [parameter for name, parameter in signature.parameters.items() if name != "page_size"]
    return replace(
        conditions,
        fn=fixed,
        pre=[with_page_size(condition) for condition in conditions.pre],
        post=[with_page_size(condition) for condition in conditions.post],
        sig=signature.replace(parameters=parameters),
    )

import json
if __name__=="__main__":
    mods=[importlib.import_module(m) for m in sys.argv[2].split(",")]
    only=sys.argv[3:]
    fns=[(m.__name__+":"+n,f) for m in mods for n,f in functions(m).items()]
    lay_bare(mods)
    for n,f in fns:
        if only and n.split(":")[1] not in only: continue
        for P in [1,2,16,64,0] if "page_size" in inspect.signature(f).parameters else [0]:
            print(msgspec.json.encode(prove(n,f,P,10)).decode(), flush=True)
