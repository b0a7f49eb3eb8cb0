"""The hooks' view of an SGLang tree whose core is in Rust: spans of paths, their names, and what is not locked."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

torch = pytest.importorskip("torch")

from kvattach.hooks import Hooks, chained  # noqa: E402
from kvattach.residency import foreign  # noqa: E402
from kvattach.sglang import view  # noqa: E402
from kvattach.sglang.pictures import Pictures  # noqa: E402
from kvattach.sglang.view import KV, STATES, WINDOW, OpaqueTree, tree_of  # noqa: E402
from kvlab.drives import CheckedTrace  # noqa: E402

SIZE = 2
FULL, SWA, MAMBA = 0, 1, 2


class RustCore:
    """Two nodes, of four and two tokens; the second has window pages, and a state."""

    def collect_path_info(self, ends: list[int]) -> Any:
        nodes = [
            SimpleNamespace(node_id=7, path_start=0, path_end=4),
            SimpleNamespace(node_id=9, path_start=4, path_end=6),
        ]
        return tuple(nodes if end == 9 else nodes[:1] for end in ends)

    def get_component_device_value(self, node: int, component: int) -> Any:
        return {SWA: torch.tensor([4, 5]), MAMBA: torch.tensor([8])}[component] if node == 9 else None

    def walk_for_kv_canary(self, *, unlocked_only: bool, swa_resident_only: bool) -> Any:
        assert unlocked_only
        return SimpleNamespace(slot_indices=torch.tensor([6, 7] if swa_resident_only else [10, 11, 6, 7]))


class Cache:
    """A tree with windows: slots 2 and 3, 10 and 11, and 6 and 7."""

    def __init__(self) -> None:
        self.tree_core = RustCore()
        mapping = torch.zeros(12, dtype=torch.int64)
        mapping[[6, 7]] = torch.tensor([4, 5])
        self.token_to_kv_pool_allocator = SimpleNamespace(full_to_swa_index_mapping=mapping)

    def supports_swa(self) -> bool:
        return True

    def supports_mamba(self) -> bool:
        return True

    def path_device_indices(self, node: int) -> Any:
        return torch.tensor([2, 3, 10, 11, 6, 7][: 6 if node == 9 else 4])


@pytest.fixture
def tree() -> OpaqueTree:
    kinds = SimpleNamespace(FULL=FULL, SWA=SWA, MAMBA=MAMBA)
    batches = SimpleNamespace(Req=type("Req", (), {"extend_image_inputs": lambda *_: None}))
    component = SimpleNamespace(ComponentType=kinds)
    release: Any = SimpleNamespace(unified=True, component=component, batches=batches, torch=torch)
    made = tree_of(release, Cache(), SIZE, Pictures(release, Hooks(CheckedTrace()), lambda: None))
    assert isinstance(made, OpaqueTree)
    return made


def test_a_path_is_spans_with_their_pages(tree: OpaqueTree) -> None:
    first, second = tree.path(9)
    assert (first.id, first.start, first.stop) == (7, 0, 4)
    assert tree.device(first) == [1, 5]
    assert tree.device(second) == [3]
    assert [tree.length(span) for span in (first, second)] == [4, 2]
    assert tree.common([first, replace(second, id=8)], [9, 7]) == [1, 1]
    assert tree.common([first, second], [9, 7]) == [2, 1]
    assert first in tree.path(7), "a node is the same one on every path"


def test_a_path_is_one_span_if_the_core_does_not_show_its_nodes(tree: OpaqueTree) -> None:
    paths = {0: [], 9: [2, 3, 10, 11]}
    core = SimpleNamespace(
        root_node_handle=lambda: 0, collect_full_device_indices=lambda node, root: torch.tensor(paths[node][root:])
    )
    tree._core = core
    (span,) = tree.path(9)
    assert (span.start, span.stop, tree.device(span)) == (0, 4, [1, 5])
    assert tree.path(0) == []


def test_only_what_has_a_window_or_a_state_has_their_pages(tree: OpaqueTree) -> None:
    first, second = tree.path(9)
    assert tree.pools == [KV, WINDOW, STATES]
    assert tree.device(first, WINDOW) == tree.device(first, STATES) == []
    assert tree.device(second, WINDOW) == [2]
    assert tree.device(second, STATES) == [8], "a state's slot is a page by itself"


class Key(list[int]):
    """The key of an insert, with a token too many."""

    extra_key = None

    @property
    def token_ids(self) -> list[int]:
        return [*self, 99]


def inserted(tree: OpaqueTree, names: dict[int, str]) -> list[Any]:
    """Insert the tokens 1 to 6; `names` are those of the tree's pages. Returns the path."""
    key = Key([1, 2, 3, 4, 5, 6])
    path = tree.inserted(9, key)
    pages = [*tree.pages_of(path, tree.values(path))]
    assert pages == [[1, 5], [], [], [3], [2], [8]], "of each node in each pool"
    tree.learns(key, [1, 5, 3], names)
    return path


def test_an_insert_names_each_page_by_all_tokens_before_its_end(tree: OpaqueTree) -> None:
    first, second = inserted(tree, {})
    name = chained("", (1, 2))
    assert tree.labels(first) == [name, chained(name, (3, 4))]
    assert tree.labels(second) == [chained(chained(name, (3, 4)), (5, 6))]
    mine = foreign("an adapter", "a key", None)
    tree.used((None, None), mine)
    inserted(tree, {})
    assert tree.labels(first)[0] == chained(mine, (1, 2)) != name
    assert mine.partition("~")[2] == tree.labels(second)[0].partition("~")[2] != ""
    inserted(tree, {1: "a1", 3: "b2"})
    known = chained("a1", (3, 4))
    assert tree.labels(first) == ["a1", known], "pages that the tree has keep their names, up to the first new one"
    assert tree.labels(second) == [chained(known, (5, 6))]


def test_the_namespaces_used_last_are_remembered(tree: OpaqueTree, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(view, "REMEMBERED", 2)
    for salt in ("one", "two", "one", "three"):
        tree.used((None, salt), f"of {salt}")
    assert [tree.whose((None, salt)) for salt in ("one", "two", "three")] == ["of one", "", "of three"]


def test_the_books_show_unlocked_pages(tree: OpaqueTree) -> None:
    def counted(pool: str) -> dict[str, Any]:
        return tree.counted(pool, *tree.books(pool), without=set())

    assert counted(KV) == {"cached": [(3, 1), (5, 1)]}
    assert counted(WINDOW) == {"cached": [(2, 1)]}
    assert counted(STATES) == {}, "of states it is not visible"
