"""Defects for MAX's own batches, its cache manager and its coordinators."""

from kvattach.max.modules import Engine
from kvlab.injection import Defect


def defects(engine: Engine) -> list[Defect]:
    """Thirty-five defects, none in the compiled pool, whose code cannot be changed."""
    return [*_requests(engine), *_content(engine), *_transfers(engine), *_adapters(engine), *_drafts(engine)]


def _requests(engine: Engine) -> list[Defect]:
    """Defects in allocating and freeing the blocks of requests."""
    group, full = engine.groups.KVGroupCoordinatorInterface, engine.groups.FullKVGroupCoordinator
    window, state = engine.groups.SlidingWindowKVGroupCoordinator, engine.recurrent.RecurrentKVGroupCoordinator
    constructor = engine.constructor.TextBatchConstructor
    return [
        Defect(
            "kept by a release",
            "a request that leaves keeps its first block",
            ((group, "release", "reversed(blocks)", "reversed(blocks[1:])"),),
        ),
        Defect(
            "kept by a cancel",
            "a request that is cancelled or ends keeps its blocks",
            ((constructor, "release_request", "self.kv_cache.release(bound.ctx)", "pass"),),
        ),
        Defect(
            "successor kept",
            "a request that leaves keeps the block that its next state was to have",
            ((state, "release", "self.pools[replica_idx].free_block(successor)", "pass"),),
        ),
        Defect(
            "hit without a reference",
            "blocks that a request finds are not held",
            ((full, "claim_hit_blocks", "pool.touch(block)", "pass"),),
        ),
        Defect(
            "window too short",
            "a window gives back blocks that are still read",
            ((window, "advance", "num_committed_blocks - self._blocks_in_window", "num_committed_blocks"),),
        ),
        Defect(
            "given back twice",
            "a block that a window has given back stays in its row",
            ((window, "advance", "req_blocks[idx] = null_block", "break"),),
        ),
        Defect(
            "table of before",
            "a row's table goes on naming a block that was given back for its twin",
            ((group, "commit", "self._bids.pop(req_id, None)", "pass"),),
        ),
        Defect(
            "twin not taken",
            "a row keeps a block that was given back for its twin",
            ((group, "commit", "req_blocks[block_idx] = twin", "pass"),),
        ),
    ]


def _content(engine: Engine) -> list[Defect]:
    """Defects in the hashes of blocks, and in states."""
    state = engine.recurrent.RecurrentKVGroupCoordinator
    manager, cache = engine.manager.JengaBlockManager, engine.cache.JengaKVCacheManager
    filled = "ctx.tokens.processed_length // self._block_size"
    return [
        Defect(
            "named before it is full",
            "a block gets its name while it is filled in part",
            ((manager, "_num_filled_blocks", filled, f"{filled} + 1"),),
        ),
        Defect(
            "name without its prefix",
            "a block's name is made of its own tokens only",
            ((engine.manager, "compute_block_hashes", "parent_hash_value = existing_hashes[-1]", "pass"),),
        ),
        Defect(
            "name without its salt",
            "requests with other salts find each other's blocks",
            ((engine.manager, "compute_block_hashes", "salt=ctx.cache_salt", "salt=None"),),
        ),
        Defect(
            "state not resumed",
            "a request that has found a state begins in a block that was not filled",
            ((cache, "_resume_state", "group.resume(ctx, replica_idx)", "{}"),),
        ),
        Defect(
            "state not carried on",
            "the block after a checkpoint does not get its state",
            (
                (
                    cache,
                    "step",
                    "self._fill_state(replica_idx, group.checkpoint(ctx, replica_idx))",
                    "group.checkpoint(ctx, replica_idx)",
                ),
            ),
        ),
        Defect(
            "state named off its border",
            "a state gets the name of a block's end that it has gone past",
            ((state, "checkpoint", "if num_committed_blocks == 0 or past_boundary:", "if num_committed_blocks == 0:"),),
        ),
    ]


def _transfers(engine: Engine) -> list[Defect]:
    """Defects in copies between replicas, and to and from a host tier."""
    manager = engine.manager.JengaBlockManager
    return [
        Defect(
            "not pinned",
            "a transfer does not hold its blocks, and gives them back",
            ((manager, "_track_transfer", "pool.touch(block)", "pass"),),
        ),
        Defect(
            "named before it is loaded",
            "blocks can be found before they have come from the host",
            ((manager, "_lookup_connector_prefix_cache_hit", "if landed:", "if loaded_hashes:"),),
        ),
        Defect(
            "failed load goes on",
            "a request goes on with blocks whose load has failed",
            ((manager, "alloc", "self._rollback_failed_onload(ctx, replica_idx)", "pass"),),
        ),
        Defect(
            "other blocks loaded",
            "a window is loaded from the beginning of the prefix",
            (
                (
                    manager,
                    "_lookup_connector_prefix_cache_hit",
                    "desired[aligned - held[leaf_id] : aligned]",
                    "desired[: held[leaf_id]]",
                ),
            ),
        ),
        Defect(
            "copy not submitted",
            "of blocks that come from another replica the last one is not copied",
            (
                (
                    manager,
                    "_copy_prefix_from_peers",
                    "_submit_page_copies(replica_idx, copies)",
                    "_submit_page_copies(replica_idx, copies[:-1])",
                ),
            ),
        ),
        Defect(
            "source of a copy",
            "blocks are copied from the replica's own blocks of the same number",
            ((manager, "_copy_prefix_from_peers", "src_replica=src,", "src_replica=replica_idx,"),),
        ),
    ]


def _adapters(engine: Engine) -> list[Defect]:
    """Defects in the slots and the routing of adapters."""
    manager, slots = engine.lora.LoRAManagerV3, engine.lora._LoRALRUCache
    requests, constructor = engine.constructor.ReplicaRequests, engine.constructor.TextBatchConstructor
    return [
        Defect(
            "adapter not activated",
            "a request's adapter gets no slot when its prompt is computed",
            ((requests, "add_active_lora", "lora_manager.activate_adapter(context.model_name)", "pass"),),
        ),
        Defect(
            "adapter taken away",
            "an adapter loses its slot to another one while requests decode with it",
            (
                (requests, "can_allocate_lora_request", "if lora_manager is None:", "if True:"),
                (constructor, "_add_tg_requests", "and not is_active_lora(", "and 0 * is_active_lora("),
            ),
        ),
        Defect(
            "adapters in one slot",
            "a slot that an adapter gets stays in the set of free ones",
            ((slots, "put", "self._free_slots.discard(slot)", "pass"),),
        ),
        Defect(
            "base first",
            "requests without an adapter come first in a batch",
            ((manager, "sort_lora_batch", "reverse=True", "reverse=False"),),
        ),
        Defect(
            "last adapter not routed",
            "the tokens of the last adapter of a batch are routed to none",
            ((manager, "get_lora_graph_inputs", "int(grouped_offsets[-1])", "int(grouped_offsets[-2])"),),
        ),
        Defect(
            "weights of before",
            "packed weights are used for other adapters, if there are as many",
            ((manager, "_adapter_buffers", "cache[0] == signature", "len(cache[0]) == len(signature)"),),
        ),
    ]


def _drafts(engine: Engine) -> list[Defect]:
    """Defects in the room and in the lengths of requests with drafts."""
    manager, cache, overlap = engine.manager, engine.cache.JengaKVCacheManager, engine.overlap
    flying = "len(ctx.spec_decoding_state.maybe_accepted_draft_tokens)"
    commit = "update_spec_decode_context_and_prepare_responses"
    return [
        Defect(
            "room for one pass",
            "a request has room for the drafts that it verifies, and none for those that it proposes",
            ((manager, "_compute_seq_len", "+ 2 * num_draft_tokens", "+ num_draft_tokens"),),
        ),
        Defect(
            "drafts in flight without room",
            "a request's room does not count the drafts that the pass before may accept",
            ((manager, "_compute_seq_len", flying, "0"),),
        ),
        Defect(
            "block without its last position",
            "a drafter that proposes blocks has room for a position less than it writes",
            ((manager, "_compute_seq_len", "+ block_draft_extra", ""),),
        ),
        Defect(
            "drafts in flight not counted",
            "the length of a request on the host leaves out the drafts that the pass before may accept",
            (
                (
                    cache,
                    "_compute_kv_cache_assignments",
                    "cache_length = ctx.tokens.processed_length + len(",
                    "cache_length = ctx.tokens.processed_length + 0 * len(",
                ),
            ),
        ),
        Defect(
            "result of a chunk",
            "what a chunk samples becomes the last token of the next chunk",
            (
                (
                    overlap.RealizeFutureTokenProcessor,
                    "_compute_mappings",
                    "and context.tokens.generated_length",
                    "and True",
                ),
            ),
        ),
        Defect(
            "drafts counted on",
            "a request that misses a pass goes on counting the drafts of the pass before",
            ((overlap, commit, "ctx.spec_decoding_state.maybe_accepted_draft_tokens = []", "pass"),),
        ),
        Defect(
            "drafts of before",
            "a request that is preempted goes on counting its drafts",
            ((engine.context.TextContext, "reset", "self._spec_decoding_state = None", "pass"),),
        ),
        Defect(
            "drafts past the end",
            "a request takes accepted drafts beyond its end",
            ((overlap, commit, "elif ctx.is_done:", "elif False:"),),
        ),
        Defect(
            "window past the drafts",
            "a window gives back blocks as if all drafts in flight were accepted",
            (
                (
                    engine.manager.JengaBlockManager,
                    "_num_filled_blocks",
                    "ctx.tokens.processed_length // self._block_size",
                    f"(ctx.tokens.processed_length + {flying}) // self._block_size",
                ),
            ),
        ),
    ]
