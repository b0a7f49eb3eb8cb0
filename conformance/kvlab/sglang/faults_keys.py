"""Defects for SGLang 0.5.23 in the cache key besides the tokens: keys, salts, adapters, new weights."""

from kvattach.sglang.release import Release
from kvlab.injection import Defect

_SALT = "cache_salt=req.cache_salt,\n"
_ROOT = "token_ids[:effective_cache_len],\n        req.extra_key,\n"
_PROMPT = "req.origin_input_ids,\n        req.extra_key,\n"


def in_keys(release: Release) -> list[Defect]:
    """Twelve of them, two in the tree's core in Rust."""
    scheduler, turns, core = release.scheduler.Scheduler, release.sessions.Session, release.opaque_core
    made, turn = (scheduler, "_handle_generate_request"), (turns, "create_req")
    return [
        Defect(
            "key: dropped",
            "a request loses its extra key",
            ((*made, "extra_key=recv_req.extra_key,", "extra_key=None,"),),
        ),
        Defect(
            "key: salt", "a request loses its salt", ((*made, "cache_salt=recv_req.cache_salt,", "cache_salt=None,"),)
        ),
        Defect(
            "key: adapter",
            "a key does not say which adapter it is for",
            ((release.batches.Req, "__init__", "if lora_id is not None:", "if False:"),),
        ),
        Defect(
            "key: turn",
            "a turn of a session loses its extra key",
            ((*turn, "extra_key=req.extra_key,", "extra_key=None,"),),
        ),
        Defect("key: salt of a turn", "a turn of a session loses its salt", ((*turn, _SALT, "cache_salt=None,\n"),)),
        Defect(
            "key: found",
            "a request is looked up without its salt",
            ((release.common, "_req_radix_key", _SALT, "cache_salt=None,\n"),),
        ),
        Defect(
            "key: published",
            "a request is published without its extra key",
            (
                (
                    release.cache_class,
                    "checkpoint_into_tree",
                    _ROOT,
                    "token_ids[:effective_cache_len],\n        None,\n",
                ),
            ),
        ),
        Defect(
            "key: prompt",
            "the prompt of a request that is published loses its extra key",
            ((release.cache_class, "checkpoint_into_tree", _PROMPT, "req.origin_input_ids,\n        None,\n"),),
        ),
        Defect(
            "key: found in Rust",
            "the core in Rust is asked without the salt",
            ((core, "match_prefix", "cache_salt=key.cache_salt,", "cache_salt=None,"),),
        ),
        Defect(
            "key: published in Rust",
            "the core in Rust is given pages without their extra key",
            ((core, "begin_insert", "extra_key=key.extra_key,", "extra_key=None,"),),
        ),
        Defect(
            "weights: no flush",
            "new weights leave the old ones' pages cached, though a flush was requested",
            ((release.weight_updater, "flush_cache_after_weight_update", "recv_req.flush_cache and", "False and"),),
        ),
        Defect(
            "weights: refused flush",
            "a flush that is refused counts as done",
            ((scheduler, "flush_cache", "success = False", "success = True"),),
        ),
    ]
