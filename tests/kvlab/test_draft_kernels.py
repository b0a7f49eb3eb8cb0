"""The stand-ins for SGLang's compiled functions for drafts, and attention over a tree of drafts."""

from types import SimpleNamespace
from typing import Any

import torch

from kvlab.serving.draft_kernels import (
    assign_rows,
    build_trees,
    pack_accepted,
    read_rows,
    read_trees,
    verify_trees,
)

CHAIN = [[True, False, False, False], [True, True, False, False], [True, True, True, False], [True, True, True, True]]
BRANCHES = [
    [True, False, False, False],
    [True, True, False, False],
    [True, False, True, False],
    [True, False, True, True],
]
"""Nodes 1 and 2 come after the root, and node 3 after node 2."""


def links() -> tuple[torch.Tensor, ...]:
    """Positions, numbers, first children and next siblings of a request with branches and of one with a chain."""
    mask = torch.tensor([BRANCHES, CHAIN]).flatten()
    positions, numbers = torch.zeros(8, dtype=torch.int64), torch.zeros(2, 4, dtype=torch.int64)
    children, siblings = torch.zeros(2, 4, dtype=torch.int64), torch.zeros(2, 4, dtype=torch.int64)
    build_trees(mask, torch.tensor([10, 20]), positions, numbers, children, siblings, 2, 4)
    return positions, numbers, children, siblings


def test_the_links_of_trees_follow_from_their_masks() -> None:
    positions, numbers, children, siblings = links()
    assert positions.tolist() == [10, 11, 11, 12, 20, 21, 22, 23]
    assert numbers.tolist() == [[0, 1, 2, 3], [4, 5, 6, 7]]
    assert children.tolist() == [[1, -1, 3, -1], [1, 2, 3, -1]]
    assert siblings.tolist() == [[-1, 2, -1, -1], [-1, -1, -1, -1]]


def verified(*predicted: list[int]) -> tuple[torch.Tensor, torch.Tensor, list[int]]:
    """The accepted nodes, the tokens after them, and the number of right drafts; given the model's token after each."""
    _, numbers, children, siblings = links()
    predicts, accepted, counts = torch.zeros(8, dtype=torch.int64), torch.full((2, 4), -1), torch.zeros(2)
    verify_trees(
        predicts=predicts,
        accept_index=accepted,
        accept_token_num=counts,
        candidates=torch.tensor([[50, 51, 52, 53], [60, 61, 62, 63]]),
        retrive_index=numbers,
        retrive_next_token=children,
        retrive_next_sibling=siblings,
        target_predict=torch.tensor(predicted),
    )
    return accepted, predicts, counts.tolist()


def test_the_path_that_the_model_predicts_is_accepted_and_its_slots_are_packed() -> None:
    accepted, predicts, counts = verified([52, 7, 53, 54], [61, 9, 63, 64])
    # The chain's third token is another one than predicted, so that what comes after it does not count.
    assert accepted.tolist() == [[0, 2, 3, -1], [4, 5, -1, -1]]
    assert predicts[[0, 2, 3, 4, 5]].tolist() == [52, 53, 54, 61, 9]
    assert counts == [2, 1]
    packed = torch.zeros(8, dtype=torch.int64)
    pack_accepted(accepted, torch.arange(30, 38), packed)
    assert packed.tolist() == [30, 32, 33, 34, 35, 0, 0, 0]


def test_a_tree_without_the_predicted_token_gives_that_token_alone() -> None:
    accepted, predicts, counts = verified([99, 7, 53, 54], [60, 61, 62, 63])
    assert accepted.tolist() == [[0, -1, -1, -1], [4, -1, -1, -1]]
    assert predicts[[0, 4]].tolist() == [99, 60]
    assert counts == [0, 0]


def test_slots_are_written_into_parts_of_rows_and_read_again() -> None:
    table, slots = torch.zeros(3, 6, dtype=torch.int64), torch.arange(1, 6)
    rows, starts, stops = torch.tensor([2, 0]), torch.tensor([1, 3]), torch.tensor([4, 5])
    assign_rows(rows, table, starts, stops, slots, 6)
    assert table.tolist() == [[0, 0, 0, 4, 5, 0], [0] * 6, [0, 1, 2, 3, 0, 0]]
    read = torch.zeros(8, dtype=torch.int64)
    read_rows(rows, table, starts, stops, read, 6)
    assert read.tolist() == [1, 2, 3, 4, 5, 0, 0, 0]


class Pool:
    """The KV of 16 slots, of one layer with one head of two values."""

    def __init__(self) -> None:
        self.keys, self.values = torch.zeros(16, 1, 2), torch.zeros(16, 1, 2)

    def set_kv_buffer(self, _: Any, slots: torch.Tensor, keys: torch.Tensor, values: torch.Tensor) -> None:
        self.keys[slots], self.values[slots] = keys, values

    def get_key_buffer(self, _: int) -> torch.Tensor:
        return self.keys

    def get_value_buffer(self, _: int) -> torch.Tensor:
        return self.values


def attended(mask: list[list[bool]], drafts: list[int], computed: int = 3) -> torch.Tensor:
    """The results of attention for these drafts after some computed tokens, by the places of their tokens."""
    values = torch.Generator().manual_seed(1)
    known = torch.rand(3, 12, 1, 2, generator=values)

    class TorchNativeAttnBackend:
        def forward_extend(self, *_: Any) -> str:
            return "a pass without drafts"

    attention = SimpleNamespace(
        torch=torch,
        TorchNativeAttnBackend=TorchNativeAttnBackend,
        KVWriteLoc=lambda slots, _: slots,
        scaled_dot_product_attention=torch.nn.functional.scaled_dot_product_attention,
    )
    read_trees(attention)
    backend: Any = TorchNativeAttnBackend()
    places = [*range(computed), *drafts]
    slots = torch.arange(len(places)) + 4
    backend.token_to_kv_pool = pool = Pool()
    pool.set_kv_buffer(None, slots[:computed], known[1, :computed], known[2, :computed])
    backend.req_to_token_pool = SimpleNamespace(req_to_token=slots[None])
    layer = SimpleNamespace(layer_id=0, tp_q_head_num=1, tp_k_head_num=1, qk_head_dim=2, scaling=1.0)
    batch = SimpleNamespace(
        forward_mode=SimpleNamespace(is_target_verify=lambda: True),
        spec_info=SimpleNamespace(draft_token_num=len(drafts), custom_mask=torch.tensor(mask).flatten()),
        out_cache_loc=slots[computed:],
        req_pool_indices=[0],
        seq_lens=torch.tensor([computed]),
    )
    # Any token has the same key and value wherever it is, as the position is part of neither here.
    query, key, value = known[:, drafts]
    result: torch.Tensor = backend.forward_extend(query.reshape(-1, 2), key, value, layer, batch)
    batch.forward_mode.is_target_verify = lambda: False
    assert backend.forward_extend(None, None, None, layer, batch) == "a pass without drafts"
    return result


def test_a_draft_reads_the_computed_tokens_and_those_that_it_descends_from() -> None:
    tree = attended(BRANCHES, [5, 6, 7, 8])
    first, second = (
        attended([row[:2] for row in CHAIN[:2]], [5, 6]),
        attended([row[:3] for row in CHAIN[:3]], [5, 7, 8]),
    )
    assert torch.allclose(tree[:2], first)
    assert torch.allclose(tree[[0, 2, 3]], second)
    assert not torch.allclose(tree[3], attended(CHAIN, [5, 6, 7, 8])[3])
