"""Images in the prompts of SGLang's requests: placeholders, and the data behind them."""

import importlib
import random
from hashlib import sha256
from typing import Any

from kvattach.sglang.release import Release

PLACEHOLDER = 1
"""The token of a placeholder, which texts may also contain."""
SENTINELS = 1 << 30
"""Tokens from here on are sentinels of images."""
LENGTHS = (3, 3, 7, 7, 7)
"""The number of placeholders of each image."""
PLACES = (0, 1, 4)
"""The positions at which the first image of a prompt may begin: few, so that prompts differ only in images."""
GAPS = (0, 0, 1, 4)
"""Tokens between two images."""


def illustrated(release: Release, tokens: list[int], rng: random.Random) -> tuple[list[int], list[int], Any]:
    """Put one or two images into a prompt. Returns it, the same with the engine's sentinels, and the images."""
    place, items, tokens = rng.choice(PLACES), [], list(tokens)
    for number in [rng.randrange(len(LENGTHS)) for _ in range(rng.choice((1, 1, 2)))]:
        stop = place + LENGTHS[number]
        if stop >= len(tokens):
            break
        tokens[place:stop] = [PLACEHOLDER] * LENGTHS[number]
        items.append(_item(release, number, (place, stop - 1)))
        place = stop + rng.choice(GAPS)
    if not items:
        return tokens, tokens, None
    made = release.batches.MultimodalProcessorOutput
    padded = made.build_padded_input_ids(tokens, items)
    return tokens, padded, made(mm_items=items, input_ids=tokens, padded_input_ids=padded)


def _item(release: Release, number: int, place: tuple[int, int]) -> Any:
    """An image with its data and the front end's hash of them."""
    kinds = importlib.import_module("sglang.srt.multimodal.modality")
    raw = f"image {number}".encode()
    data = release.torch.tensor(list(raw), dtype=release.torch.uint8)
    item = release.batches.MultimodalDataItem(modality=kinds.Modality.IMAGE, offsets=[place], feature=data)
    item.set_hash(int.from_bytes(sha256(raw).digest()[:8]))
    return item
