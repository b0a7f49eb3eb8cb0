"""Who imports whom: never in a circle, and only from the implementations towards the specification.

Imports for types alone and imports within functions count: a reader follows them too.
"""

from graphlib import CycleError, TopologicalSorter

import grimp
import pytest

Imports = dict[str, set[str]]
"""What a module or a room imports."""

TOWARDS = {
    "kvspec": set[str](),
    "kvref": {"kvspec"},
    "kvcuda": {"kvspec"},
    "kvlaw": {"kvspec"},
    "kvconform": {"kvspec", "kvref", "kvcuda", "kvlaw"},
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
    """The part of kvconform that a module stands in: a folder, or a module beside the folders."""
    return ".".join(module.split(".")[:2])


def test_modules_import_each_other_in_no_circle(imports: Imports) -> None:
    assert len(imports) > 200
    assert circle(imports) == []


def test_rooms_of_kvconform_import_each_other_in_no_circle(imports: Imports) -> None:
    rooms: Imports = {}
    for module, imported in imports.items():
        if module.startswith("kvconform."):
            others = {room(other) for other in imported if other.startswith("kvconform.")}
            rooms.setdefault(room(module), set()).update(others - {room(module)})
    assert len(rooms) > 10
    assert circle(rooms) == []


def test_imports_go_towards_the_specification(imports: Imports) -> None:
    wrong = [
        f"{module} imports {other}"
        for module, imported in imports.items()
        for other in imported
        if (package := module.split(".")[0]) != (its := other.split(".")[0]) and its not in TOWARDS[package]
    ]
    assert wrong == []
