"""Rewrites Python source so that mutmut changes every function: it leaves decorated ones alone.

- A contract (`@require`, `@ensure`, `@transition`) goes: what is measured is what tests notice; contracts have proofs.
- `@property` goes, and the name becomes a property that calls the method.
  One that can be set as well stays as it is.
- Any other decorator of a function is applied below it, to a function that calls it.

All else stays as it is, line for line, so that mutants are easy to read.
"""

import ast

CONTRACTS = {"require", "ensure", "transition"}


def undecorated(source: str) -> str:
    """`source` with its functions undecorated."""
    lines = source.splitlines()
    functions = [node for node in ast.walk(ast.parse(source)) if isinstance(node, ast.FunctionDef)]
    settable = {function.name for function in functions if _has_setter(function)}
    for function in sorted(functions, key=lambda function: -function.lineno):
        below = []
        if function.name in settable:
            continue
        for decorator in reversed(function.decorator_list):
            called = decorator.func if isinstance(decorator, ast.Call) else decorator
            name = called.id if isinstance(called, ast.Name) else ""
            indent = " " * function.col_offset
            if name in ("classmethod", "staticmethod"):  # mutmut knows them
                continue
            if name == "property":
                line = lines[function.lineno - 1]
                lines[function.lineno - 1] = line.replace(f"def {function.name}(", f"def get_{function.name}(")
                below.append(f"{indent}{function.name} = property(lambda self: self.get_{function.name}())")
            elif name not in CONTRACTS:
                below.append(f"{indent}{ast.unparse(decorator)}(lambda *args: {function.name}(*args))")
            assert function.end_lineno is not None and decorator.end_lineno is not None
            lines[function.end_lineno : function.end_lineno] = below
            del lines[decorator.lineno - 1 : decorator.end_lineno]
    return "\n".join(lines) + "\n"


def _has_setter(function: ast.FunctionDef) -> bool:
    return any(
        isinstance(decorator, ast.Attribute) and decorator.attr == "setter" for decorator in function.decorator_list
    )
