"""Short scenarios for the canary: each brings the device manager to where one kind of defect changes what a pass reads.

Most end with a request that takes all that is free, and another that reads what was kept: what was handed out twice, or
is nowhere, shows there.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial, partialmethod
from typing import Any

import pytest

from kvcuda.decode_graph import DecodeGraph
from kvcuda.device_manager import DeviceManager
from kvcuda.digest import generate
from kvcuda.digest_step import DigestStep
from kvcuda.memory import OUT_BUFFERS, DeviceMemory
from kvref.scheduler.req import GenerateReq
from kvspec.events import Complete, Config, Extend, Launch, MatchPrefix, Retract, Submit
from tests.cuda_impl.guarded import Guard, GuardedStep
from tests.cuda_impl.simulated_streams import SimulatedStreams
from tests.cuda_impl.test_canary_streams import late_launches, late_words
from tests.cuda_impl.untouched import reserve_only

PLAIN = Config(2, 14, 5, 32)
WINDOW = Config(2, 20, 5, 40, sliding_window=4, num_window_pages=16)


class Scene:
    """Requests on a device manager under the canary, step by step. Outputs are tokens that no prompt has."""

    def __init__(self, config: Config, prompts: Mapping[str, Sequence[int]], streams: Any = None) -> None:
        """Nothing runs yet."""
        self.prompts = {name: list(tokens) for name, tokens in prompts.items()}
        self.outputs = {name: range(900 + 20 * at, 920 + 20 * at) for at, name in enumerate(prompts)}
        traffic = [GenerateReq(name, [*tokens], self.outputs[name]) for name, tokens in self.prompts.items()]
        self.step = GuardedStep(config, traffic, streams=streams)
        self.manager = self.step.manager
        self.sampled = dict.fromkeys(prompts, 0)
        self.launches = 0

    def prefill(self, *names: str, session: str | None = None) -> None:
        """Whole prompts, in one batch, up to the first token of each."""
        self.prepare(*names, session=session)
        self.launch(*names)
        self.complete(*names)

    def prepare(self, *names: str, session: str | None = None) -> None:
        """Room for whole prompts."""
        for name in names:
            self.manager.submit(name, [*self.prompts[name]], session)
            self.manager.match_prefix(name)
        self.manager.extend([(name, len(self.prompts[name])) for name in names])

    def launch(self, *names: str) -> None:
        """The prepared batch."""
        self.launches += 1
        self.manager.launch(self.launches, list(names))

    def complete(self, *names: str) -> None:
        """The oldest launch: a token for each of these."""
        oldest = self.manager.launches[0].number
        self.manager.complete(oldest, {name: self.outputs[name][self.sampled[name]] for name in names})
        for name in names:
            self.sampled[name] += 1

    def decode(self, *names: str) -> None:
        """One step of each, which reads all that it has."""
        self.manager.decode(list(names))
        self.launch(*names)
        self.complete(*names)

    def run_ahead(self, name: str, steps: int) -> None:
        """So many steps are launched before the turn ends; nothing of what they bring is kept."""
        for _ in range(steps):
            self.manager.decode([name])
            self.launch(name)
        self.manager.finish(name)
        for _ in range(steps):
            self.complete()

    def draft(self, accepted: Mapping[str, int], n: int = 4) -> None:
        """A speculative step of `n` positions, of which so many are accepted."""
        self.manager.decode([*accepted], n)
        self.launch(*accepted)
        self.complete()
        for name, count in accepted.items():
            self.keep(name, count)

    def keep(self, name: str, accepted: int) -> None:
        """Verify the oldest speculative step of a request."""
        at = self.sampled[name]
        self.manager.verify(name, accepted, list(self.outputs[name][at : at + accepted]))
        self.sampled[name] += accepted

    def take_all(self) -> None:
        """A request writes whatever is free, so much at a time as the next chunk reads, and goes."""
        config, memory = self.manager.config, self.manager.memory
        free = min(memory.available, memory.windows.available if config.sliding_window else memory.available)
        name = f"all{self.launches}"
        self.prompts[name] = list(range(400, 400 + min(free * config.page_size, config.max_context_len) - 1))
        self.outputs[name], self.sampled[name] = range(800, 820), 0
        self.step.tokens[name] = [*self.prompts[name], *self.outputs[name]]
        self.manager.submit(name, [*self.prompts[name]])
        self.manager.match_prefix(name)
        chunk = config.sliding_window or len(self.prompts[name])
        for end in range(chunk, len(self.prompts[name]) + chunk, chunk):
            self.manager.extend([(name, min(end, len(self.prompts[name])))])
            self.launch(name)
            self.complete(*([name] if end >= len(self.prompts[name]) else []))
        self.decode(name)
        self.manager.abort(name)

    def found(self) -> list[Any]:
        """The canary's findings."""
        return self.step.guard.found()


def evicted_places_are_listed_again() -> Scene:
    """An eviction and a publication at the same places in the arena are not carried out together."""
    scene = Scene(PLAIN, {"a": [1, 2, 3, 4, 5], "b": [7, 8, 9, 10, 11], "d": [7, 8, 9, 10, 12]})
    scene.prefill("a")
    scene.manager.finish("a")
    scene.prefill("b")
    scene.manager.evict_pages(2)
    scene.manager.finish("b")
    scene.take_all()
    scene.prefill("d")
    return scene


def part_of_what_is_queued_is_a_duplicate() -> Scene:
    """The node that is queued is split."""
    scene = Scene(PLAIN, {"a": [1, 2, 3, 4, 5], "b": [1, 2, 7, 8, 9]})
    scene.prefill("a", "b")
    scene.manager.cache_unfinished("a")
    scene.manager.cache_unfinished("b")
    scene.decode("b", "a")
    return scene


def long_prefix_and_one_more_token() -> Scene:
    """The part copied from the arena is longer than the new part."""
    prompt = list(range(1, 24))
    scene = Scene(PLAIN, {"a": prompt, "b": [*prompt[:22], 99]})
    scene.prefill("a")
    scene.manager.finish("a")
    scene.take_all()
    scene.prefill("b")
    return scene


def prefix_in_many_pieces() -> Scene:
    """More runs of the arena are matched than one launch copies, beside a whole batch."""
    prompts: dict[str, Sequence[int]] = {f"p{at}": [*[1, 2, 3, 4, 5, 6, 7, 8][: 2 * at], 50 + at] for at in range(1, 5)}
    scene = Scene(Config(2, 40, 4, 32), prompts | {"z": [1, 2, 3, 4, 5, 6, 7, 8, 60], "y": [70], "x": [71], "w": [72]})
    for name in prompts:
        scene.prefill(name)
        scene.manager.finish(name)
    scene.prefill("y", "x", "w", "z")
    scene.decode("z", "y")
    return scene


def fewer_positions_than_were_drafted() -> Scene:
    """A step of one position after one of four, most of which were taken back."""
    scene = Scene(Config(2, 30, 5, 32), {"a": [1, 2, 3, 4], "b": [5, 6, 7, 8]})
    scene.prefill("a", "b")
    scene.draft({"a": 1, "b": 4})
    for _ in range(3):
        scene.decode("a", "b")
    return scene


def step_ahead_of_a_verify() -> Scene:
    """A second speculative step is launched before the first is verified; then all of both is kept."""
    scene = Scene(Config(2, 30, 5, 32), {"a": [1, 2, 3, 4]})
    scene.prefill("a")
    for _ in range(2):
        scene.manager.decode(["a"], 4)
        scene.launch("a")
    for _ in range(2):
        scene.complete()
        scene.keep("a", 4)
    scene.decode("a")
    return scene


def two_batches_wait_for_a_small_out() -> Scene:
    """Larger than the first `out_cache_loc`, prepared one after the other, launched later."""
    scene = Scene(PLAIN, {"a": [1, 2, 3, 4, 5], "b": [6, 7, 8, 9, 10]})
    scene.prepare("a")
    scene.prepare("b")
    scene.launch("a")
    scene.launch("b")
    scene.complete("a")
    scene.complete("b")
    scene.decode("a", "b")
    return scene


def row_far_down() -> Scene:
    """Its place in the table of rows is past 2^31."""
    scene = Scene(Config(256, 8, 2100, 1 << 20), {"a": range(300)})
    scene.manager.rows.free_rows().reverse()
    scene.prefill("a")
    scene.decode("a")
    return scene


def replay_takes_pages_that_go_back() -> list[Any]:
    """A captured step writes the row on a stream that is late; what was in the row is handed on."""
    step = DigestStep(DeviceManager, Config(2, 8, 2, 16), streams=SimulatedStreams(lazy="forward"))
    graph = DecodeGraph(step, 1)
    step(Submit("a", [1, 2]))
    step(MatchPrefix("a"))
    step(Extend([("a", 2)]))
    step(Launch(1, ["a"]))
    graph.decode_and_launch(2, ["a"])
    step(Retract("a"))
    step.manager.memory.flush()
    for number in (1, 2):
        step(Complete(number, {}))
    manager = step.manager
    tokens = {"b": [*range(5, 22)], "a": [1, 2, *generate([1, 2], 4)]}
    manager.forward = guard = Guard(manager, lambda run: tokens[run.name])
    manager.submit("b", tokens["b"][:14])
    manager.match_prefix("b")
    manager.extend([("b", 14)])
    manager.launch(3, ["b"])
    for number in (4, 5):
        manager.complete(number - 1, {"b": tokens["b"][number + 10]})
        manager.decode(["b"])
        manager.launch(number, ["b"])
    return guard.found()


def row_comes_back_at_the_same_length() -> Scene:
    """Another request's state stood at the very length that the next one resumes from."""
    scene = Scene(Config(2, 20, 1, 20, num_states=6), {"a": [1, 2, 3], "b": [7, 7], "c": [1, 2, 4]})
    scene.prefill("a")
    scene.manager.finish("a")
    scene.prefill("b")
    scene.manager.abort("b")
    scene.prefill("c")
    return scene


def session_goes_back_by_two_borders() -> Scene:
    """Launches ran ahead of a turn; the next turn passes the last border again, and a third goes back to it."""
    third = [1, 2, 3, 4, 5, 900, *range(50, 56), 920, 70]
    scene = Scene(Config(4, 40, 3, 40, num_states=12), {"t": third[:5], "u": third[:12], "v": third})
    scene.manager.open_session("s")
    scene.prefill("t", session="s")
    scene.manager.cache_unfinished("t")
    scene.run_ahead("t", 7)
    scene.prefill("u", session="s")
    scene.run_ahead("u", 2)
    scene.prefill("v", session="s")
    return scene


# Window sides

TWICE = {"a": range(1, 10), "b": range(1, 10), "d": [*range(1, 9), 80], "e": [*range(1, 5), 81]}


def revived_sides_are_evicted() -> Scene:
    """A tombstone gets its sides back, and goes."""
    scene = Scene(WINDOW, TWICE)
    scene.prefill("a")
    scene.manager.finish("a")
    scene.manager.evict_pages(0, window=4)
    scene.prefill("b")
    scene.manager.finish("b")
    scene.manager.evict_pages(4)
    scene.take_all()
    return scene


def published_sides_are_dropped() -> Scene:
    """The pages published a moment ago give their sides up."""
    scene = Scene(WINDOW, TWICE)
    scene.prefill("a")
    scene.manager.finish("a")
    scene.manager.evict_pages(0, window=4)
    scene.take_all()
    return scene


def dropped_sides_are_revived() -> Scene:
    """The store's pages lose their sides, and get a duplicate's; a request reads them."""
    scene = Scene(WINDOW, TWICE)
    scene.prefill("a", "b")
    scene.manager.finish("a")
    scene.manager.memory.flush()
    scene.manager.evict_pages(0, window=4)
    scene.manager.finish("b")
    scene.take_all()
    scene.prefill("d")
    return scene


def sides_are_shed_before_the_row_is_rewritten() -> Scene:
    """A request gives sides up, and then its duplicates."""
    scene = Scene(WINDOW, TWICE)
    scene.prefill("a", "b")
    scene.manager.finish("a")
    scene.manager.memory.flush()
    scene.manager.swa_evict("b")
    scene.manager.cache_unfinished("b")
    scene.take_all()
    scene.prefill("d", "e")
    return scene


def pages_without_sides_go_back() -> Scene:
    """A request leaves whose first pages have no sides any more."""
    scene = Scene(WINDOW, TWICE)
    scene.prefill("a", "b")
    for name in ("a", "b"):
        scene.manager.swa_evict(name)
        scene.manager.abort(name)
    scene.take_all()
    return scene


def pages_without_sides_are_replaced() -> Scene:
    """Duplicates go back, the first of them without sides."""
    scene = Scene(WINDOW, TWICE)
    scene.prefill("a", "b")
    scene.manager.finish("a")
    scene.manager.swa_evict("b")
    scene.manager.finish("b")
    scene.take_all()
    scene.prefill("d")
    return scene


def ring_of_sides_goes_round() -> Scene:
    """More sides come and go than the ring has places."""
    names = [f"{side}{at}" for at in range(6) for side in "xy"]
    scene = Scene(Config(2, 20, 5, 40, sliding_window=4, num_window_pages=11), {n: [*map(ord, n * 4)] for n in names})
    for one, other in zip(names[::2], names[1::2], strict=True):
        scene.prefill(one, other)
        scene.decode(one, other)
        scene.manager.abort(one)
        scene.manager.abort(other)
    return scene


IN_ANY_ORDER: list[Callable[[], Scene]] = [
    evicted_places_are_listed_again,
    part_of_what_is_queued_is_a_duplicate,
    revived_sides_are_evicted,
    published_sides_are_dropped,
    dropped_sides_are_revived,
    sides_are_shed_before_the_row_is_rewritten,
]
"""Scenarios that depend on the order of jobs: run more than once."""

ONCE: list[Callable[[], Scene]] = [
    long_prefix_and_one_more_token,
    fewer_positions_than_were_drafted,
    step_ahead_of_a_verify,
    row_comes_back_at_the_same_length,
    session_goes_back_by_two_borders,
    pages_without_sides_go_back,
    pages_without_sides_are_replaced,
    ring_of_sides_goes_round,
]


def _found(scene: Callable[[], Scene]) -> list[Any]:
    return scene().found()


def scenarios(patch: pytest.MonkeyPatch) -> Iterator[tuple[str, Callable[[], list[Any]]]]:
    """Each scenario, and the function that carries it out and returns what the canary found."""
    for scene in [*ONCE, *IN_ANY_ORDER * 3]:
        yield scene.__name__, partial(_found, scene)
    yield "replay_takes_pages_that_go_back", replay_takes_pages_that_go_back
    yield "late_launches", lambda: late_launches(SimulatedStreams(lazy="forward"), OUT_BUFFERS + 2)
    yield "late_words", lambda: late_words(patch)
    with patch.context() as few:
        for module in ("tensors", "moves", "memory"):
            few.setattr(f"kvcuda.{module}.MAX_JOBS", 4)
        yield "prefix_in_many_pieces", lambda: prefix_in_many_pieces().found()
    with patch.context() as small:
        made = DeviceMemory.__init__
        small.setattr(DeviceMemory, "__init__", partialmethod(made, out_tokens=3))
        yield "two_batches_wait_for_a_small_out", lambda: two_batches_wait_for_a_small_out().found()
    with patch.context() as reserved:
        reserve_only(reserved)
        yield "row_far_down", lambda: row_far_down().found()
