"""Names of implementations: `reference`, `cuda`, `bug:NAME` of the gallery, `module:Class`, or `exec:COMMAND`."""

import importlib
import os
import sys

from kvconform.errors import LoadError, like
from kvconform.features import never_asked
from kvconform.node import NodeFactory
from kvconform.protocol import missing_methods
from kvconform.vectors.runner import Factory

KNOWN = {"reference": "kvref.manager:Manager", "cuda": "kvcuda.manager:Manager"}
"""The implementations that come with kvspec, by their short names."""


def load(name: str) -> Factory:
    """The implementation `reference`, `cuda` or `module:Class`; modules may be in the working folder, too.

    `bug:NAME` is a mutant of the reference from the bug gallery, `exec:COMMAND` a node in any language.

    Raises:
        LoadError: there is none, it cannot be imported, or it lacks required operations.
    """
    module_name, colon, attribute = KNOWN.get(name, name).partition(":")
    if module_name == "bug":
        return _mutant(attribute)
    if module_name == "exec":
        return NodeFactory(name)
    if not (module_name and colon and attribute):
        raise LoadError(f"no implementation {name!r}: give {', '.join(KNOWN)}, module:Class or exec:COMMAND")
    if name not in KNOWN and (here := os.getcwd()) not in sys.path:  # noqa: PTH109
        sys.path.insert(0, here)
    try:
        found = getattr(importlib.import_module(module_name), attribute)
    except (Exception, SystemExit) as error:  # importing runs the module, which may raise anything
        reason = " ".join(f"{type(error).__name__}: {error}".split())
        raise LoadError(f"implementation {name!r} cannot be imported: {reason}") from error
    if not callable(found):
        raise LoadError(f"implementation {name!r} is no class: it cannot be called with a Config")
    if missing := [method for method in missing_methods(found) if method not in never_asked(found)]:
        raise LoadError(f"implementation {name!r} lacks {', '.join(missing)}")
    factory: Factory = found
    return factory


def is_own(name: str) -> bool:
    """Whether an implementation comes with kvspec, on every machine."""
    return name in KNOWN or name.startswith("bug:")


def _mutant(name: str) -> Factory:
    """The factory of a defect in the gallery, which is imported only when it is used."""
    from kvconform.gallery.mutants import BUGS

    if name not in BUGS:
        raise LoadError(f"no defect {name!r} in the gallery; 'kvspec bugs' lists them{like(name, BUGS)}")
    return BUGS[name].factory
