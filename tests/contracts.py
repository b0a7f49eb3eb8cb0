"""Contracts at a fifth of what icontract takes for them: each condition is called straight.

Only where one does not hold is icontract asked, which says so in its own words.
"""

import functools
import inspect
from collections.abc import Callable
from typing import Any

Decorator = Callable[..., Callable[[Callable[..., Any]], Any]]


def quick(decorator: Decorator) -> Decorator:
    """`require` or `ensure`, with a quick look at the conditions in front of icontract's own."""
    return lambda condition: lambda function: _quick(decorator(condition)(function))


def _quick(checked: Any) -> Callable[..., Any]:
    signature = inspect.signature(checked)
    bare = [parameter.replace(annotation=inspect.Parameter.empty) for parameter in signature.parameters.values()]
    taken = signature.replace(parameters=bare, return_annotation=inspect.Signature.empty)
    handed = ", ".join(f"{name}={name}" for name in signature.parameters)
    (before,), after = checked.__preconditions__ or ([],), checked.__postconditions__
    names = {f"condition_{number}": contract for number, contract in enumerate([*before, *after])}
    calls = [f"{name}({', '.join(contract.condition_args)})" for name, contract in names.items()]
    lines = (
        f"def look{taken}:",
        f"  if {' and '.join(calls[: len(before)]) or True}:",
        f"    result = function({handed})",
        f"    if {' and '.join(calls[len(before) :]) or True}: return result",
        f"  checked({handed})",
        "  raise AssertionError('a condition did not hold, and holds the second time')",
    )
    scope = {name: contract.condition for name, contract in names.items()}
    scope |= {"checked": checked, "function": checked.__wrapped__}
    exec("\n".join(lines), scope)
    return functools.update_wrapper(scope["look"], checked)
