"""The imports between packages: never in a circle, and only from the implementations towards the specification.

Imports for types alone and imports within functions count: a reader follows them too.
"""

from graphlib import CycleError, TopologicalSorter

import grimp
import pytest

Imports = dict[str, set[str]]
"""The imports of a module or a room."""

TOWARDS = {
    "kvspec": set[str](),
    "kvref": {"kvspec"},
    "kvcuda": {"kvspec"},
    "kvcheck": {"kvspec"},
    "kvtrace": {"kvspec"},
    "kvconform": {"kvspec", "kvref", "kvcuda", "kvcheck", "kvtrace"},
    "kvattach": {"kvspec", "kvcuda", "kvcheck", "kvtrace", "kvconform"},
    "kvlab": {"kvspec", "kvref", "kvcuda", "kvcheck", "kvtrace", "kvconform", "kvattach"},
    "kvcli": {"kvspec", "kvref", "kvcuda", "kvcheck", "kvtrace", "kvconform", "kvattach", "kvlab"},
}
"""Which packages a package may import."""


@pytest.fixture(scope="module")
def imports() -> Imports:
    graph = grimp.build_graph(*TOWARDS, cache_dir=None)
    return {module: graph.find_modules_directly_imported_by(module) for module in graph.modules}


def circle(imports: Imports) -> list[str]:
    """A circle of imports, each imported by the next; empty if there is none."""
    try:
        TopologicalSorter(imports).prepare()
    except CycleError as error:
        found: list[str] = error.args[1]
        return found
    return []


def room(module: str) -> str:
    """The part of a package that a module stands in: a folder, or a module beside the folders."""
    return ".".join(module.split(".")[:2])


def test_modules_import_each_other_in_no_circle(imports: Imports) -> None:
    assert len(imports) > 200
    assert circle(imports) == []


@pytest.mark.parametrize(("package", "most"), [("kvconform", 10), ("kvattach", 8), ("kvlab", 8)])
def test_rooms_of_a_package_import_each_other_in_no_circle(imports: Imports, package: str, most: int) -> None:
    rooms: Imports = {}
    for module, imported in imports.items():
        if module.startswith(f"{package}."):
            others = {room(other) for other in imported if other.startswith(f"{package}.")}
            rooms.setdefault(room(module), set()).update(others - {room(module)})
    assert len(rooms) > most
    assert circle(rooms) == []


def test_imports_go_towards_the_specification(imports: Imports) -> None:
    wrong = [
        f"{module} imports {other}"
        for module, imported in imports.items()
        for other in imported
        if (package := module.split(".")[0]) != (its := other.split(".")[0]) and its not in TOWARDS[package]
    ]
    assert wrong == []
