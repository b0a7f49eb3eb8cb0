"""CrossHair checks the contracts of functions, in a separate process.

    python -m kvconform.proving.contracts kvspec.pages,kvspec.lengths
    python -m kvconform.proving.contracts kvspec.pages,kvspec.lengths kvspec.lengths:resume 1=30 64=30 any=2

The first call lists the functions with contracts: a JSON list of names, each with whether it depends on the page size.
The second proves some of them, each at the page sizes after it, with the seconds for one condition; each verdict is a
line of JSON. Contracts are attached to functions only if `KVSPEC_CONTRACTS` is `1` at their import, so the caller of
this module sets it.
"""

import importlib
import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import replace
from functools import wraps
from time import perf_counter
from types import ModuleType
from typing import Any

import icontract
import msgspec
from crosshair.condition_parser import ConditionExpr, Conditions, IcontractParser
from crosshair.core import ConditionCheckable
from crosshair.core_and_libs import MessageType, run_checkables
from crosshair.fnutil import FunctionInfo
from crosshair.options import DEFAULT_OPTIONS, AnalysisKind

from kvconform.proving.prove import ANY, ContractVerdict, Outcome


def functions(module: ModuleType) -> dict[str, Callable[..., Any]]:
    """The functions of a module that carry contracts."""
    return {
        name: value
        for name, value in vars(module).items()
        if inspect.isfunction(value) and value.__module__ == module.__name__ and hasattr(value, "__postconditions__")
    }


def lay_bare(modules: list[ModuleType]) -> None:
    """Let calls between functions check only their preconditions.

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


def prove(name: str, function: Any, page_size: str, seconds: float) -> ContractVerdict:
    """Let CrossHair check every condition of `function`, with the page size as a constant unless it is `ANY`."""
    started = perf_counter()
    about = FunctionInfo.from_fn(function)
    conditions = IcontractParser().get_fn_conditions(about)
    assert conditions is not None
    if page_size != ANY:
        conditions = _at(conditions, int(page_size))
    options = DEFAULT_OPTIONS.overlay(
        # asserts: CrossHair need not look for contracts in called functions
        analysis_kind=[AnalysisKind.asserts],
        per_condition_timeout=seconds,
        report_all=True,
    )
    outcome: Outcome = "confirmed"
    details = []
    for contract, condition in zip(function.__postconditions__, conditions.post, strict=True):
        checkable = ConditionCheckable(about, options, replace(conditions, post=[condition]))
        for message in run_checkables([checkable]):
            if message.state == MessageType.CANNOT_CONFIRM and outcome == "confirmed":
                outcome = "unconfirmed"
            elif message.state not in (MessageType.CANNOT_CONFIRM, MessageType.CONFIRMED):
                outcome = "refuted"
                details.append(f"{condition.expr_source or contract.condition.__name__} is {message.message}")
    seconds_taken = round(perf_counter() - started, 3)
    return ContractVerdict(name, page_size, len(conditions.post), outcome, "; ".join(details), seconds_taken)


def _at(conditions: Conditions, page_size: int) -> Conditions:
    """The same contract for the function with this page size built in."""
    function = conditions.fn

    signature = conditions.sig
    parameters = [parameter for name, parameter in signature.parameters.items() if name != "page_size"]

    @wraps(function)
    def fixed(*args: Any, **kwargs: Any) -> Any:
        named = {parameter.name: value for parameter, value in zip(parameters, args, strict=False)}
        return function(**named, **kwargs, page_size=page_size)

    def with_page_size(condition: ConditionExpr) -> ConditionExpr:
        evaluate = condition.evaluate
        assert evaluate is not None

        def evaluate_with(values: Mapping[str, object]) -> bool:
            return evaluate({**values, "page_size": page_size})

        return replace(condition, evaluate=evaluate_with)

    return replace(
        conditions,
        fn=fixed,
        pre=[with_page_size(condition) for condition in conditions.pre],
        post=[with_page_size(condition) for condition in conditions.post],
        sig=signature.replace(parameters=parameters),
    )


def main() -> None:
    """List the functions, or prove those that the command line names."""
    names, *rest = sys.argv[1:]
    modules = [importlib.import_module(name) for name in names.split(",")]
    found = {
        f"{module.__name__}:{name}": function for module in modules for name, function in functions(module).items()
    }
    if not rest:
        sized = {name: "page_size" in inspect.signature(function).parameters for name, function in found.items()}
        print(msgspec.json.encode(list(sized.items())).decode())
        return
    lay_bare(modules)
    name = ""
    for argument in rest:
        page_size, limited, seconds = argument.partition("=")
        if not limited:
            name = argument
            continue
        print(msgspec.json.encode(prove(name, found[name], page_size, float(seconds))).decode(), flush=True)


if __name__ == "__main__":
    main()
