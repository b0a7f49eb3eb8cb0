"""The positions that a batch of SGLang's scheduler computes for each request, and the states that it keeps."""

from collections.abc import Callable
from typing import Any

from kvattach.sglang.states import Kept

Spans = Callable[..., tuple[list[int], list[int], list[int]]]
"""Makes of each request, once captures are resolved: the first position, the last one (exclusive, in tokens), and the
last one that is written. Between these two a pass writes drafts that it rejects."""


def ends(drafts: int, starts: Any) -> list[int]:
    """The positions before which a pass reads and writes that verifies so many tokens of each request.

    `starts` is a tensor with the position of the first of them.
    """
    return [start + drafts for start in starts.tolist()]


def verified(drafts: int, starts: Any, accepted: Any) -> tuple[list[int], list[int], list[int]]:
    """The spans of such a pass; `accepted` is a tensor with the number of tokens of each request that it accepts."""
    firsts: list[int] = starts.tolist()
    stops = [start + count for start, count in zip(firsts, accepted.tolist(), strict=True)]
    return firsts, stops, ends(drafts, starts)


def spans(batch: Any) -> tuple[list[int], list[int]]:
    """The first and the last position (exclusive, in tokens) of each request of a batch without drafts."""
    stops = batch.seq_lens_cpu.tolist()
    if not batch.forward_mode.is_extend():
        return [stop - 1 for stop in stops], stops
    # Older releases hand their worker a batch of its own.
    return batch.extend_prefix_lens if hasattr(batch, "extend_prefix_lens") else batch.prefix_lens, stops


def kept_states(batch: Any, stops: list[int]) -> Kept | None:
    """The states that the launch keeps; `None`: it keeps none."""
    slots = getattr(batch, "mamba_track_indices", None)
    if slots is None:
        return None
    extends = batch.forward_mode.is_extend()
    mask = batch.mamba_prefill_track_mask_cpu if extends else batch.mamba_track_mask_cpu
    positions = [req.kv.mamba_last_track_seqlen for req in batch.reqs] if extends else stops
    return Kept(slots, [position if keeps else None for position, keeps in zip(positions, mask, strict=True)])


def verified_states(verifying: Any, batch: Any, verified: list[int], drafts: int) -> Kept | None:
    """The states that a step with drafts keeps: of each request the last one at a border that it has passed, if any.

    `verifying` is the module of the release with the function that says which one it is; `drafts` are verified.
    """
    if batch.mamba_track_indices is None:
        return None
    torch = verifying.torch
    places = torch.arange(len(verified) * drafts).reshape(-1, drafts)
    accepted = torch.tensor(verified)
    _, steps = verifying._verify_commit_step_indices(
        batch=batch, accept_index=places, accept_lens=accepted, draft_token_num=drafts
    )
    starts, slots = batch.seq_lens_cpu.tolist(), batch.mamba_track_indices.tolist()
    kept = zip(slots, starts, steps.tolist(), strict=True)
    positions = [start + step + 1 if step >= 0 and slot >= 0 else None for slot, start, step in kept]
    return Kept(batch.mamba_track_indices, positions)
