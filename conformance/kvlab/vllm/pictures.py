"""Images in the prompts of vLLM's requests: placeholders, and the data behind them."""

import random
from collections import UserDict
from hashlib import sha256
from types import SimpleNamespace
from typing import Any

PLACEHOLDER = 1
"""The token of a placeholder, which texts may also contain."""
LENGTHS = (3, 3, 7, 7, 7)
"""The number of placeholders of each image."""
LONGEST = max(LENGTHS)
PLACES = (0, 1, 2, 5)
"""The positions at which the first image of a prompt may begin: few, so that prompts differ only in images."""
GAPS = (0, 0, 1, 4)
"""Tokens between two images."""


def illustrated(prompt: list[int], dice: random.Random, most: int) -> tuple[list[int], list[Any]]:
    """A prompt with one or two images, and their features; unchanged if it would exceed `most` tokens."""
    place = min(dice.choice(PLACES), len(prompt))
    features: list[Any] = []
    for number in [dice.randrange(len(LENGTHS)) for _ in range(dice.choice((1, 1, 2)))]:
        if len(prompt) + LENGTHS[number] > most:
            break
        prompt = [*prompt[:place], *[PLACEHOLDER] * LENGTHS[number], *prompt[place:]]
        features.append(_feature(number, place))
        place = min(place + LENGTHS[number] + dice.choice(GAPS), len(prompt))
    return prompt, features


def _feature(number: int, place: int) -> Any:
    """An image as the engine core gets it, with its data and the front end's hash of them."""
    from vllm.multimodal.inputs import MultiModalFeatureSpec, PlaceholderRange

    raw = f"image {number}".encode()
    hashed = sha256(raw).hexdigest()
    return MultiModalFeatureSpec(
        data=UserDict(pixels=SimpleNamespace(data=raw)),
        modality="image",
        identifier=hashed,
        mm_position=PlaceholderRange(offset=place, length=LENGTHS[number]),
        mm_hash=hashed,
    )
