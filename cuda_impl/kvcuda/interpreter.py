"""Triton's interpreter at a quarter of the time, with the same results.

The interpreter replaces the functions of Triton's language by interpreted ones at each launch, and again at each call
of a function in a kernel, and restores them at the end of a launch. Here that happens once for each function, and they
stay. It also looks up types in a table that it makes anew each time; here the result is kept. It computes for each sum
whether it overflows, but asserts this only when it debugs; here it is computed only then.
"""

from functools import cache
from typing import Protocol


class _Type(Protocol):
    """A type of Triton's language."""

    name: str
    scalar: "_Type"


@cache
def quicken() -> None:
    """Make the interpreter quick for the rest of the process, unless the release of Triton has other internals."""
    from triton.runtime import interpreter

    if not hasattr(interpreter, "_LangPatchScope"):
        return
    patch, np_dtype = interpreter._patch_lang, interpreter._get_np_dtype
    known: dict[str, object] = {}

    @cache
    def patch_once(function: object) -> object:
        patch(function)
        return interpreter._LangPatchScope()

    def known_dtype(type: _Type) -> object:
        scalar = type.scalar
        if scalar.name not in known:
            known[scalar.name] = np_dtype(scalar)
        return known[scalar.name]

    interpreter._patch_lang, interpreter._get_np_dtype = patch_once, known_dtype
    if not interpreter.interpreter_builder.options.debug:
        vars(interpreter.interpreter_semantic).update(binary_op_sanitize_overflow_impl=lambda *_: None)
