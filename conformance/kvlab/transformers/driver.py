"""Runs transformers' own batch processor on random requests, in one thread, with a real model."""

import importlib
import queue
import random
from functools import partial
from typing import Any

from kvlab.model import VOCABULARY, Answer
from kvlab.traffic import Traffic, until_done

MOST_STEPS = 5_000
NO_END = -1
"""The end token: none, so that each answer has the requested length."""


def settings(rng: random.Random) -> dict[str, Any]:
    """A random configuration: a memory small enough that requests are reset, and batches that cut prompts."""
    page_size = rng.choice([4, 4, 8, 16])
    return {
        "page_size": page_size,
        "num_blocks": rng.randint(20, 40) * 4 // page_size,
        "max_batch_tokens": rng.choice([16, 32, 64]),
        "max_requests_per_batch": rng.choice([2, 4, 8]),
        "scheduler_type": rng.choice(["fifo", "prefill_first"]),
        "allow_block_sharing": rng.random() < 0.8,
        "safety_margin": rng.choice([0.0, 0.15, 0.4]),
    }


class Driver:
    """One manager of continuous batching and its clients."""

    def __init__(self, model: Any, seed: int, requests: int) -> None:
        """The same seed gives the same run."""
        rng = random.Random(seed)
        drawn = settings(rng)
        transformers = importlib.import_module("transformers")
        generation = transformers.GenerationConfig(do_sample=False, eos_token_id=NO_END)
        # Its own check refuses several samples without sampling; they are forks nevertheless.
        generation.num_return_sequences = rng.choice([1, 1, 3])
        self._manager = model.init_continuous_batching(
            generation_config=generation,
            continuous_batching_config=transformers.ContinuousBatchingConfig(**drawn),
        )
        self._processor = self._manager._create_batch_processor()
        self._manager.batch_processor, self._manager.current_batch = self._processor, 0
        # A request and each of its samples must fit alone.
        tokens = self._processor.cache.num_blocks * drawn["page_size"]
        running = drawn["max_requests_per_batch"]
        # With only two different tokens equal blocks occur after different prefixes.
        self.traffic = Traffic(rng, requests, tokens // 2, rng.choice([2, VOCABULARY - 1]), running=running)
        self.answers: dict[str, Answer] = {}
        """Request -> its newest output, complete or not."""

    def step(self) -> None:
        """Let requests arrive and leave, and compute one batch.

        Raises:
            RuntimeError: the engine raised an error, or requests never finish.
        """
        traffic, manager = self.traffic, self._manager
        traffic.loop(MOST_STEPS)
        traffic.arriving(self._ask, least=int(not self._processor.has_pending_requests()))
        leaving = traffic.aborted(0.03)
        if leaving is not None:
            manager.cancel_request(leaving)
        manager._wake_up_loop.set()
        manager._generation_loop_body(self._processor, bootstrapping=False)
        self._collect()
        if not traffic.left and not self._processor.has_pending_requests():
            self._processor.prepare_next_batch()
            traffic.end()

    def _ask(self) -> None:
        traffic, name = self.traffic, f"r{self.traffic.number()}"
        asked = traffic.length(3)
        prompt = traffic.prompt(traffic.rng.randint(1, traffic.longest - asked))
        self._manager.add_request(prompt, name, asked, streaming=traffic.rng.random() < 0.5)
        traffic.live.append(name)

    def _collect(self) -> None:
        while True:
            try:
                output = self._manager.output_router.output_queue.get_nowait()
            except queue.Empty:
                return
            if output.error is not None:
                raise RuntimeError(f"{output.request_id}: {output.error}")
            answer = Answer(output.request_id, output.prompt_ids, output.generated_tokens)
            self.answers[output.request_id] = answer
            if output.is_finished():
                self.traffic.finished(output.request_id)

    def run(self) -> str:
        """Step until all requests have ended. Returns the error that ended the run, or an empty string."""
        return until_done(partial(_forever, self))


def _forever(driver: Driver) -> None:
    while True:
        driver.step()
