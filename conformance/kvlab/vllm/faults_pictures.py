"""Defects for vLLM in the cache keys of blocks with images."""

from kvlab.injection import Defect

_KEYS = "_gen_mm_extra_hash_keys"
_NAMED = 'extra_keys.append(("mm", mm_feature.identifier, offset - start_token_idx))'


def picture_defects() -> list[Defect]:
    """Six of them, for 0.33.0."""
    import vllm.v1.core.kv_cache_utils as utils

    neighbour = "mm_features[curr_mm_idx - 1].identifier"
    return [
        Defect("image: omitted", "a key does not say which image is there", ((utils, _KEYS, _NAMED, "pass"),)),
        Defect(
            "image: first alone",
            "a key says which image comes first, and no other",
            ((utils, _KEYS, "curr_mm_idx < len(mm_features):", "curr_mm_idx < 1:"),),
        ),
        Defect(
            "image: neighbour",
            "a key has the hash of the image before, or of the last one",
            ((utils, _KEYS, _NAMED, _NAMED.replace("mm_feature.identifier", neighbour)),),
        ),
        Defect(
            "image: last block",
            "the blocks of an image do not say which it is, but for its last one",
            ((utils, _KEYS, "if end_token_idx > offset:", "if end_token_idx >= offset + length:"),),
        ),
        Defect(
            "image: place",
            "a key does not say where in a block an image begins, as in 0.18.1",
            ((utils, _KEYS, _NAMED, _NAMED.replace("offset - start_token_idx", "0")),),
        ),
        Defect(
            "image: one a block",
            "of two images in one block the second is not named",
            (
                (
                    utils,
                    _KEYS,
                    "# the next mm input.\n                curr_mm_idx += 1\n",
                    "# the next mm input.\n                return extra_keys, curr_mm_idx + 1\n",
                ),
            ),
        ),
    ]
