"""Runs MAX's own `OverlapTextGenerationPipeline` with drafts, without a model.

Its two graphs are stood in for. `Realizing` puts the results of a pass into the inputs of the next one: the sampled
tokens, the proposed drafts, and the lengths of the caches without rejected drafts. `Model` verifies drafts and proposes
others; each proposal is probably the token that the target will sample.
"""

import random
from collections.abc import Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from functools import partial
from types import SimpleNamespace
from typing import Any, Literal

import numpy

from kvattach.max.hooks import Attached, Part
from kvattach.max.modules import Engine
from kvlab.max.device import Buffer, Stager
from kvlab.tokens import Tokens

WRONG = 7
"""A proposal that no request's target samples."""

Kind = Literal["sequential", "block", "shared"]
"""A drafter proposes a token at a time, or all of them in one block; or it reads the target's KV, and writes none."""


@dataclass(frozen=True)
class Drafting:
    """How a server drafts."""

    kind: Kind
    drafts: int
    """The proposals of a step for each request."""
    widths: tuple[int, ...] = ()
    """The drafts that a step verifies, by its number of requests; none: all drafts."""
    mixed: int = 0
    """The drafts that a step verifies which computes prompts, too."""

    @property
    def at_once(self) -> int:
        """The proposals of one pass of the drafter."""
        return self.drafts if self.kind == "block" else 1

    @property
    def proposed(self) -> int:
        """The positions after the accepted drafts at which the drafter computes: its first proposal needs none."""
        return self.drafts + 1 if self.kind == "block" else self.drafts - 1

    def policy(self, engine: Engine) -> Any:
        """The engine's policy for the drafts of a step."""
        skips = 0 in self.widths
        return engine.overlap.SpecWidthPolicy(
            num_speculative_tokens=self.drafts,
            by_batch_size=[0, *self.widths] if self.widths else None,
            mixed=self.mixed,
            skippable_draft=skips,
            skips_draft=skips and not self.mixed,
        )


class Lengths:
    """Stands in for the inputs of one replica's cache: the length of each request's."""

    def __init__(self, cache_lengths: Buffer) -> None:
        """Take lengths in tokens."""
        self.cache_lengths = cache_lengths


def stand_in(engine: Engine) -> None:
    """Let the engine's pipeline use these buffers and inputs, and let the scheduler know the pipeline."""
    overlap = engine.overlap
    overlap.Buffer, overlap.KVCacheInputsPerDevice = Buffer, Lengths
    engine.scheduler.OverlapTextGenerationPipeline = overlap.OverlapTextGenerationPipeline


class _Device:
    """Stands in for an accelerator: an operation is executed at once, and the host sees a pass when it waits for it."""

    is_host = False

    def __init__(self, attached: Attached) -> None:
        self._attached, self.default_queue = attached, self

    def record_event(self) -> SimpleNamespace:
        """An event behind the last pass."""
        return SimpleNamespace(synchronize=partial(self._attached.finished, self._attached.launch))


class Realizing:
    """Stands in for the graph of `build_realize_future_token_graph`."""

    def __init__(self, replicas: int) -> None:
        """Each replica has one device."""
        self._replicas = replicas

    def execute(self, *inputs: Buffer) -> list[Buffer]:
        """The realized tokens, drafts and lengths of the caches. A row that is in one batch only has no partner."""
        arrays = [one.to_numpy() for one in inputs]
        to_current, to_previous, tokens, offsets, sampled, drafts = arrays[:6]
        lengths, (proposed, verified, accepted) = arrays[-3 - self._replicas : -3], arrays[-3:]
        tokens, drafts, width = tokens.copy(), drafts.copy(), drafts.shape[1]
        for row, previous in enumerate(to_previous):
            if 0 <= previous < len(sampled):
                tokens[offsets[row + 1] - 1] = sampled[previous]
        more = numpy.zeros(len(drafts), numpy.int64)
        for previous, row in enumerate(to_current):
            if 0 <= row < len(drafts):
                drafts[row] = proposed[previous, :width]
                more[row] = accepted[previous] - verified.shape[1]
        ends = numpy.cumsum([len(one) for one in lengths])[:-1]
        realized = [length + rows for length, rows in zip(lengths, numpy.split(more, ends), strict=True)]
        return [Buffer.from_numpy(tokens), Buffer.from_numpy(drafts), *map(Buffer.from_numpy, realized)]


class Model:
    """Stands in for a target and its drafter in one graph."""

    def __init__(self, engine: Engine, attached: Attached, tokens: Tokens, drafting: Drafting, longest: int) -> None:
        """Make a model for requests of at most `longest` tokens."""
        self._engine, self._attached, self._tokens, self._drafting = engine, attached, tokens, drafting
        self._dice = random.Random(f"{tokens.seed} drafts")
        self.device = _Device(attached)
        self.max_seq_len = longest

    def prepare_initial_token_inputs(
        self, replica_batches: Sequence[Sequence[Any]], kv_cache_inputs: Sequence[Buffer], return_n_logits: int
    ) -> SimpleNamespace:
        """The inputs of a pass, as the host knows them."""
        rows = [context for batch in replica_batches for context in batch]
        taken = [context.tokens.active for context in rows]
        offsets = numpy.cumsum([0, *map(len, taken)])
        ends = numpy.cumsum([0, *map(len, replica_batches)])
        return SimpleNamespace(
            rows=rows,
            tokens=Buffer.from_numpy(numpy.concatenate(taken)),
            input_row_offsets=Buffer.from_numpy(offsets),
            data_parallel_splits=Buffer.from_numpy(ends),
            kv_cache_inputs=[Lengths(one) for one in kv_cache_inputs],
            **dict.fromkeys(("draft_tokens", "draft_probs_full", "seed", "temperature", "top_k", "max_k", "top_p")),
            **dict.fromkeys(("min_top_p", "in_thinking_phase", "draft_slot_ids", "draft_block_offsets")),
        )

    def execute(self, model_inputs: Any) -> Any:
        """Verify the drafts of a batch, and propose others."""
        offsets, tokens = model_inputs.input_row_offsets.to_numpy(), model_inputs.tokens.to_numpy().tolist()
        lengths = numpy.concatenate([one.cache_lengths.to_numpy() for one in model_inputs.kv_cache_inputs]).tolist()
        skips = model_inputs.draft_slot_ids is not None and not model_inputs.draft_slot_ids.num_elements
        parts: dict[str, Part] = {}
        accepted, sampled, proposed = list[int](), list[int](), list[list[int]]()
        for row, context in enumerate(model_inputs.rows):
            name, start, taken = str(context.request_id), lengths[row], tokens[offsets[row] : offsets[row + 1]]
            self._tokens.consume(name, start, taken, "execute")
            drafts = model_inputs.draft_tokens.to_numpy()[row].tolist()
            count, token, further = self._verified(context, name, start + len(taken), drafts, skips)
            parts[name] = Part(start, len(taken), len(drafts), count, 0 if skips else self._drafting.proposed)
            accepted.append(count)
            sampled.append(token)
            proposed.append(further)
        self._attached.queued(parts)
        outputs = self._engine.overlap.UnifiedEagleOutputs()
        outputs.num_accepted_draft_tokens = Buffer.from_numpy(accepted, self.device)
        outputs.next_tokens = Buffer.from_numpy(sampled, self.device)
        outputs.next_draft_tokens = Buffer.from_numpy(proposed, self.device)
        outputs.next_draft_probs_full = None
        return outputs

    def _verified(
        self, context: Any, name: str, position: int, drafts: list[int], skips: bool
    ) -> tuple[int, int, list[int]]:
        """The number of accepted drafts, the token after them, and the next proposals. `position`: of the first draft.

        A row without proposals has placeholders for drafts, none of which is accepted. A chunk samples nothing.
        """
        placeholder, accepted, token = self._engine.overlap.MAGIC_DRAFT_TOKEN_ID, 0, 0
        if not context.tokens.actively_chunked:
            token = self._tokens.sample(name, position)
            if any(draft != placeholder for draft in drafts):
                while accepted < len(drafts) and drafts[accepted] == token:
                    accepted += 1
                    token = self._tokens.sample(name, position + accepted)
        if skips:
            return accepted, token, [placeholder] * self._drafting.drafts
        after = position + accepted + 1
        right = [self._tokens.due(name, after + further) for further in range(self._drafting.drafts)]
        return accepted, token, [one if self._dice.random() < 0.7 else WRONG for one in right]


def pipeline(
    engine: Engine,
    attached: Attached,
    tokens: Tokens,
    cache: Any,
    drafting: Drafting,
    *,
    overlap: bool,
    replicas: int,
    batch: int,
    longest: int,
) -> Any:
    """The engine's pipeline. It has no adapters: MAX offers them for no model with drafts."""
    of = engine.overlap
    made = of.OverlapTextGenerationPipeline.__new__(of.OverlapTextGenerationPipeline)
    model = Model(engine, attached, tokens, drafting, longest)
    policy = drafting.policy(engine)
    realizing = of.RealizeFutureTokenProcessor.__new__(of.RealizeFutureTokenProcessor)
    realizing._graph, realizing._enable_dp, realizing._num_devices = Realizing(replicas), replicas > 1, replicas
    realizing._num_speculative_tokens, realizing._sampled_draft_proposal = drafting.drafts, False
    speculative = SimpleNamespace(is_eagle=lambda: drafting.kind != "block", is_mtp=lambda: False)
    attributes = {
        "lora": None,
        "_pipeline_config": SimpleNamespace(
            needs_bitmask_constraints=False,
            runtime=SimpleNamespace(execute_empty_batches=False),
            debug_verify_replay=False,
            model=SimpleNamespace(data_parallel_degree=replicas),
            speculative=speculative,
        ),
        "_pipeline_model": model,
        "_devices": [model.device] * replicas,
        "_kv_manager": cache,
        "_max_batch_size": batch,
        "_spec_width_policy": policy,
        "_spec_decode_state": of.SpecDecodeState(
            drafting.drafts,
            policy,
            cache,
            Stager(()),
            *[None] * 5,  # the values of sampling
        ),
        "_build_spec_decode_sampling_buffers": lambda _: SimpleNamespace(
            **dict.fromkeys(("temperature", "top_k", "max_k", "top_p", "min_top_p", "seed", "in_thinking_phase"))
        ),
        "_realize_future_token_processor": realizing,
        "_request_validator": nullcontext(),
        "_structured_output": SimpleNamespace(enabled=False),
        "_think_start_token_id": -1,
        "_think_end_token_id": -1,
        "_disable_overlap": not overlap,
        "_max_graph_capture_batch_size": 0,
    }
    unused = ("_prev_batch", "_encoder_cache", "_graph_capture_runner", "_synthesis_aligner", "_last_sync_monotonic")
    for name, value in (attributes | dict.fromkeys(unused)).items():
        setattr(made, name, value)
    return made
