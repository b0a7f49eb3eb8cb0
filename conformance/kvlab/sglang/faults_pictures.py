"""Defects for SGLang 0.5.23 in the sentinels that identify images in prompts."""

from kvattach.sglang.release import Release
from kvlab.injection import Defect

_PADDED = "padded_input_ids[start : end + 1] = item.padding_sequence("


def in_pictures(release: Release) -> list[Defect]:
    """Five of them."""
    hashed = (release.batches.MultimodalDataItem, "set_hash", "self.hash.to_bytes(")
    padded = (release.batches.MultimodalProcessorOutput, "build_padded_input_ids", _PADDED)
    kept = "padded_input_ids[start : end + 1] = [padded_input_ids[start]] * (end - start) + item.padding_sequence(1 or "
    return [
        Defect("image: omitted", "the sentinels of all images are the same", ((*hashed, "(0).to_bytes("),)),
        Defect(
            "image: one bit",
            "sentinels are made of one bit of an image's hash",
            ((*hashed, "(self.hash % 2).to_bytes("),),
        ),
        Defect(
            "image: first alone",
            "all images of a prompt have the first one's sentinels",
            ((*padded, _PADDED.replace("item.", "mm_items[0].")),),
        ),
        Defect(
            "image: neighbour",
            "an image has the sentinels of the one before, or of the last one",
            ((*padded, _PADDED.replace("item.", "mm_items[mm_items.index(item) - 1].")),),
        ),
        Defect("image: last token", "an image has a sentinel in its last place alone", ((*padded, kept),)),
    ]
