"""On a CPU: SGLang's compiled functions for drafts, in plain torch, and its attention in plain torch for drafts.

A pass verifies a tree of drafts for each request. Its root is the last token of the request, and each other node is a
draft of the token after its parent. A node is known by its place among those of its request.
"""

import importlib
from collections.abc import Callable
from typing import Any

NONE = -1
"""There is no such node."""


def assign_rows(rows: Any, table: Any, starts: Any, stops: Any, slots: Any, _: int) -> None:
    """Write slots into parts of rows, one part after the other."""
    parts = slots.split((stops - starts).tolist())
    for row, start, stop, part in zip(rows.tolist(), starts.tolist(), stops.tolist(), parts, strict=True):
        table[row, start:stop] = part


def read_rows(rows: Any, table: Any, starts: Any, stops: Any, slots: Any, _: int) -> None:
    """Read the slots of parts of rows, one part after the other."""
    parts = slots[: int((stops - starts).sum())].split((stops - starts).tolist())
    for row, start, stop, part in zip(rows.tolist(), starts.tolist(), stops.tolist(), parts, strict=True):
        part.copy_(table[row, start:stop])


def pack_accepted(accepted: Any, slots: Any, packed: Any) -> None:
    """Pack the slots of the accepted nodes of all requests."""
    places = accepted.flatten()
    kept = slots[places[places > NONE].long()]
    packed[: len(kept)] = kept


def build_trees(
    mask: Any, lengths: Any, positions: Any, nodes: Any, children: Any, siblings: Any, requests: int, size: int
) -> None:
    """Fill in the positions of nodes, their numbers in the batch, their first children and their next siblings.

    `mask` says of two nodes of a request whether the second one is the first one or above it; `lengths` are the
    positions of the roots.
    """
    children.fill_(NONE)
    siblings.fill_(NONE)
    nodes.copy_(importlib.import_module("torch").arange(requests * size).view(requests, size))
    for request, above in enumerate(mask.view(requests, size, size).tolist()):
        last: dict[int, int] = {}
        for node, row in enumerate(above):
            ancestors = [place for place in range(node) if row[place]]
            positions[request * size + node] = lengths[request] + len(ancestors)
            if not ancestors:
                continue
            parent = ancestors[-1]
            if parent in last:
                siblings[request, last[parent]] = node
            else:
                children[request, parent] = node
            last[parent] = node


def verify_trees(
    *,
    predicts: Any,
    accept_index: Any,
    accept_token_num: Any,
    candidates: Any,
    retrive_index: Any,
    retrive_next_token: Any,
    retrive_next_sibling: Any,
    target_predict: Any,
) -> None:
    """Accept of each tree the path of drafts that the model predicts, and the model's token after it."""
    trees = zip(
        *(
            facts.tolist()
            for facts in (candidates, retrive_index, retrive_next_token, retrive_next_sibling, target_predict)
        ),
        strict=True,
    )
    for request, (drafts, numbers, children, siblings, predicted) in enumerate(trees):
        path = [0]
        while len(path) < accept_index.shape[1]:
            node = children[path[-1]]
            while node != NONE and drafts[node] != predicted[path[-1]]:
                node = siblings[node]
            if node == NONE:
                break
            path.append(node)
        for place, node in enumerate(path):
            accept_index[request, place] = numbers[node]
            predicts[numbers[node]] = predicted[node]
        accept_token_num[request] = len(path) - 1


def read_trees(attention: Any) -> None:
    """Let attention in plain torch verify drafts: a node reads what it descends from alone."""
    extend = attention.TorchNativeAttnBackend.forward_extend

    def forward_extend(self: Any, q: Any, k: Any, v: Any, layer: Any, batch: Any, save_kv_cache: bool = True) -> Any:
        if not batch.forward_mode.is_target_verify():
            return extend(self, q, k, v, layer, batch, save_kv_cache)
        torch, pool, size = attention.torch, self.token_to_kv_pool, batch.spec_info.draft_token_num
        pool.set_kv_buffer(layer, attention.KVWriteLoc(batch.out_cache_loc, None), k, v)
        keys, values = pool.get_key_buffer(layer.layer_id), pool.get_value_buffer(layer.layer_id)
        queries = q.view(-1, size, layer.tp_q_head_num, layer.qk_head_dim).transpose(1, 2)
        masks = batch.spec_info.custom_mask.view(-1, size, size)
        outputs = []
        for query, row, length, mask in zip(
            queries, batch.req_pool_indices, batch.seq_lens.tolist(), masks, strict=True
        ):
            slots = self.req_to_token_pool.req_to_token[row, : length + size]
            output = attention.scaled_dot_product_attention(
                query[None],
                keys[slots].movedim(1, 0)[None],
                values[slots].movedim(1, 0)[None],
                attn_mask=torch.cat([mask.new_ones(size, length), mask], dim=1),
                enable_gqa=layer.tp_q_head_num != layer.tp_k_head_num,
                scale=layer.scaling,
            )
            outputs.append(output[0].transpose(0, 1))
        return torch.cat(outputs).reshape(q.shape)

    attention.TorchNativeAttnBackend.forward_extend = forward_extend


COMPILED: dict[str, dict[str, Callable[..., None]]] = {
    "sgl_kernel": {
        "assign_req_to_token_pool_cpu": assign_rows,
        "assign_extend_cache_locs_cpu": read_rows,
        "fill_accept_out_cache_loc_cpu": pack_accepted,
        "verify_tree_greedy_cpu": verify_trees,
    },
    "sgl_kernel.speculative": {"reconstruct_indices_from_tree_mask": build_trees},
}
"""Module -> name -> function."""
