"""Runs LMCache's engine as a serving engine does: look up a prompt, load the hit, release it, store the rest.

Writes to disk are queued, and the driver completes them in any order. Requests may meanwhile be in any phase, and end
in any phase. Keys are cleared at any moment. At the end nothing may be held, and each prompt is served once more.
"""

import asyncio
import importlib
import random
import shutil
import tempfile
from collections.abc import Callable, Generator, Iterator
from concurrent.futures import Future
from dataclasses import dataclass, field, replace
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch

from kvattach.lmcache.hooks import Attached
from kvattach.lmcache.modules import Engine
from kvattach.patches import Patches
from kvlab.lmcache.device import HEAD, HEADS, LAYERS, Connector, layerwise
from kvlab.traffic import ERRORS, STUCK, Traffic, until_done

PAGE = 4096
"""Bytes of a page of the pool. An object of any chunk here has one page."""
MOST_STEPS = 5_000
PLACEHOLDER = 1_000
"""The token in each position of an image."""
IMAGES = tuple(f"{number:060x}{end}" for number, end in enumerate(("a93d", "a93d", "07c6")))
"""The hashes of images, as vLLM passes them; two have the same end."""
WAITS = 200
"""The most successive waits of a call for memory, while nothing else makes progress."""


@dataclass(frozen=True)
class Shape:
    """The sizes of one run; lengths in tokens, memory in chunks."""

    chunk: int
    pages: int
    files: int
    """The size of the disk; 0: no disk."""
    alphabet: int
    policy: str
    unfull: bool
    """Whether partial chunks are stored, too."""
    running: int
    layerwise: bool
    """Whether layers are stored and loaded one at a time."""
    clears: float = 0.06
    """How often a prompt's chunks are cleared."""
    images: float = 0.0
    """How often a prompt has an image."""

    @classmethod
    def drawn(cls, rng: random.Random) -> "Shape":
        """A memory small enough for evictions, and prompts with common prefixes.

        Layers are not loaded from a disk: if memory is short the engine continues with chunks that were never read.
        """
        by_layers = rng.random() < 0.4
        return cls(
            chunk=rng.choice([2, 4, 8]),
            pages=rng.randint(6, 20),
            files=0 if by_layers else rng.choice([0, 8, 12, 40]),
            alphabet=rng.choice([2, 3, 50]),
            policy=rng.choice(["LRU", "LFU", "FIFO", "MRU"]),
            unfull=rng.random() < 0.5,
            running=rng.randint(1, 4),
            layerwise=by_layers,
        )


class _Queue:
    """Work on files: the engine queues it, and the driver completes it."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng
        self._work: list[tuple[Any, Future[Any]]] = []

    def submit(self, coroutine: Any, _: Any) -> Future[Any]:
        """Stands in for `asyncio.run_coroutine_threadsafe`."""
        done: Future[Any] = Future()
        self._work.append((coroutine, done))
        return done

    def step(self) -> bool:
        """Do one piece of work, if there is any."""
        if not self._work:
            return False
        coroutine, done = self._work.pop(self._rng.randrange(len(self._work)))
        done.set_result(asyncio.run(coroutine))
        return True

    def advance(self) -> None:
        """Do a random number of pieces."""
        more = True
        while more:
            more = self._rng.random() < 0.5 and self.step()

    def finish(self) -> None:
        """Do all remaining pieces."""
        more = True
        while more:
            more = self.step()

    def forget(self) -> None:
        """The run has ended."""
        for coroutine, _ in self._work:
            coroutine.close()


def _at_once(coroutine: Any, _: Any) -> Future[Any]:
    """Stands in for `asyncio.run_coroutine_threadsafe` if the caller waits for the result at once."""
    done: Future[Any] = Future()
    done.set_result(asyncio.run(coroutine))
    return done


class _Lock:
    """Stands in for a lock. In the only thread here waiting for a held lock would never end."""

    def __init__(self) -> None:
        self._held = False

    def acquire(self) -> None:
        if self._held:
            raise RuntimeError(f"{STUCK}: a lock is waited for that nothing gives back")
        self._held = True

    def release(self) -> None:
        self._held = False

    def __enter__(self) -> None:
        self.acquire()

    def __exit__(self, *_: object) -> None:
        self.release()


class _Inline:
    """Stands in for the executors of the disk: a job is done at once when it is submitted."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """There are no threads."""

    async def submit_job(self, job: Callable[..., Any], *args: Any, priority: int = 0, **kwargs: Any) -> Any:
        """Do the job."""
        return job(*args, **kwargs)

    def map(self, job: Callable[..., Any], *parts: Any) -> Iterator[Any]:
        """Do the jobs in order."""
        return map(job, *parts)


@dataclass(eq=False)
class Request:
    """A request of the serving engine: it looks up, loads, releases, computes and stores."""

    name: str
    tokens: list[int]
    """As the engine's integration makes them: where an image is they are numbers made of its hash."""
    tags: dict[str, str]
    content: tuple[object, ...]
    """The tokens, with the image's hash in each position of it."""
    within: bool = False
    """Whether its layers are being transferred: then it cannot end."""
    steps: Iterator[None] = field(default_factory=lambda: iter(()))


def run(engine: Engine, attached: Attached, seed: int, requests: int = 40, *, shape: Shape | None = None) -> str:
    """Drive one engine until all its requests have ended; the same seed gives the same run.

    Returns the error that ended the run, or an empty string.
    """
    rng = random.Random(seed)
    pictures = random.Random(f"{seed} images")
    shape = shape or replace(Shape.drawn(rng), images=pictures.choice((0.0, 0.0, 0.5)))
    traffic = Traffic(rng, requests, 6 * shape.chunk, shape.alphabet, running=shape.running)
    queue, folder = _Queue(rng), tempfile.mkdtemp(prefix="kvspec-lmcache-")
    try:
        with Patches() as patches:
            _stand_in(engine, queue, patches)
            cache = _made(engine, attached, shape, folder)
            try:
                drive = partial(_drive, cache, attached, shape, traffic, queue, pictures)
                return until_done(drive, (*ERRORS, NameError))
            finally:
                queue.forget()
                cache.storage_manager.loop.close()
                cache.storage_manager.storage_backends["LocalCPUBackend"].memory_allocator.close()
    finally:
        shutil.rmtree(folder)


def _stand_in(engine: Engine, queue: _Queue, patches: Patches) -> None:
    """Let the driver decide when files are written, and let waits for memory wait for files."""
    waits = 0

    def wait(_: float) -> None:
        nonlocal waits
        waits = 0 if queue.step() else waits + 1
        if waits > WAITS:
            raise RuntimeError(f"{STUCK}: memory is waited for, and nothing is left that could free any")

    later = SimpleNamespace(run_coroutine_threadsafe=queue.submit, AbstractEventLoop=object)
    at_once = SimpleNamespace(run_coroutine_threadsafe=_at_once, new_event_loop=asyncio.new_event_loop)
    patches.set(engine.disk, "asyncio", later)
    patches.set(engine.disk, "AsyncPQThreadPoolExecutor", _Inline)
    patches.set(engine.disk, "ThreadPoolExecutor", _Inline)
    patches.set(engine.disk, "threading", SimpleNamespace(Lock=_Lock))
    patches.set(engine.cpu, "time", SimpleNamespace(sleep=wait))
    patches.set(engine.storage_manager, "asyncio", at_once)
    patches.set(engine.storage_manager, "start_loop_in_thread_with_exceptions", lambda _: None)


def _made(engine: Engine, attached: Attached, shape: Shape, folder: str) -> Any:
    of = importlib.import_module
    config = of("lmcache.v1.config").LMCacheEngineConfig.from_defaults(
        chunk_size=shape.chunk,
        local_cpu=True,
        max_local_cpu_size=shape.pages * PAGE / 1024**3,
        local_disk=folder if shape.files else None,
        max_local_disk_size=shape.files * PAGE / 1024**3,
        cache_policy=shape.policy,
        use_layerwise=shape.layerwise,
        save_unfull_chunk=shape.unfull,
        py_enable_gc=True,
    )
    metadata = of("lmcache.v1.metadata").LMCacheMetadata(
        "model", 1, 1, 0, 0, torch.float32, (LAYERS, 2, shape.chunk, HEADS, HEAD), chunk_size=shape.chunk
    )
    tokens = of("lmcache.v1.token_database").ChunkedTokenDatabase(config, metadata)
    connector = Connector(attached)
    device = layerwise(connector) if shape.layerwise else connector
    cache = engine.cache_engine.LMCacheEngine(config, metadata, tokens, device, lambda *_: None, lambda *_: None)
    cache.post_init()
    return cache


def _drive(
    cache: Any, attached: Attached, shape: Shape, traffic: Traffic, queue: _Queue, pictures: random.Random
) -> None:
    rng = traffic.rng
    request_of = partial(_request, cache, attached, shape, traffic, pictures)
    seen: list[Request] = []
    while traffic.left or traffic.live:
        traffic.loop(MOST_STEPS)
        if len(traffic.live) < shape.running:
            arrived = traffic.arriving(request_of, least=int(not traffic.live))
            traffic.live += arrived
            seen += arrived
        request = rng.choice(traffic.live)
        if next(request.steps, request) is request:
            traffic.live.remove(request)
        aborted = traffic.aborted(0.03)
        if aborted is not None and aborted.within:
            traffic.live.append(aborted)
        elif aborted is not None:
            cache.lookup_unpin(aborted.name)
        if rng.random() < shape.clears and not traffic.calm:
            cache.clear(rng.choice(seen).tokens)
        elif rng.random() < 0.02 and not traffic.calm:
            cache.clear()
        queue.advance()
    for request in seen:
        again = replace(request, name=f"{request.name} again")
        for _ in _served(cache, attached, shape, again):
            queue.step()
    queue.finish()
    attached.idle()


def _request(cache: Any, attached: Attached, shape: Shape, traffic: Traffic, pictures: random.Random) -> Request:
    tokens = traffic.prompt(traffic.rng.randint(1, traffic.longest))
    tags = {"lmcache.tag.user": str(traffic.rng.randint(0, 1))} if traffic.rng.random() < 0.3 else {}
    request = Request(f"r{traffic.number()}", tokens, tags, tuple(tokens))
    if pictures.random() < shape.images:
        _add_image(request, shape, pictures)
    request.steps = _served(cache, attached, shape, request)
    return request


def _add_image(request: Request, shape: Shape, pictures: random.Random) -> None:
    """Put an image over a part of a prompt, whose tokens the engine's integration then makes of its hash."""
    image, offset, length = pictures.choice(IMAGES), pictures.choice((0, shape.chunk)), shape.chunk
    span = slice(offset, min(offset + length, len(request.tokens)))
    content = list[object](request.tokens)
    request.tokens[span] = [PLACEHOLDER] * len(request.tokens[span])
    content[span] = [image] * len(content[span])
    request.content = tuple(content)
    keyed = importlib.import_module("lmcache.integration.vllm.utils").apply_mm_hashes_to_token_ids
    place = SimpleNamespace(offset=offset, length=length)
    request.tokens = keyed(torch.tensor(request.tokens), [image], [place]).tolist()


def _served(cache: Any, attached: Attached, shape: Shape, request: Request) -> Iterator[None]:
    """A serving engine's calls for one request. Other requests make progress between them."""
    attached.contents[request.name] = request.content
    tokens, given = request.tokens, {"req_id": request.name, "request_configs": request.tags or None}
    found = cache.lookup(tokens, lookup_id=request.name, pin=True, request_configs=request.tags or None)
    yield
    if found:
        found = yield from _loaded(cache, shape, request, tokens[:found], given)
        yield
    cache.lookup_unpin(request.name)
    yield
    known = found // shape.chunk * shape.chunk
    if known == len(tokens):
        return
    mask = torch.ones(len(tokens), dtype=torch.bool)
    mask[:known] = False
    if shape.layerwise:
        yield from _through(request, cache.store_layer(tokens, mask=mask, **given))
    else:
        cache.store(tokens, mask=mask, **given)
    yield


def _loaded(
    cache: Any, shape: Shape, request: Request, tokens: list[int], given: dict[str, Any]
) -> Generator[None, None, int]:
    """Load the hit. Returns the number of loaded tokens."""
    if not shape.layerwise:
        return int(cache.retrieve(tokens, **given).sum())
    answers = yield from _through(request, cache.retrieve_layer(tokens, **given))
    return int(answers[0] or 0)


def _through(request: Request, layers: Iterator[Any]) -> Generator[None, None, list[Any]]:
    """Take all layers, one at a time. The request cannot end meanwhile."""
    answers, request.within = list[Any](), True
    for answer in layers:
        answers.append(answer)
        yield
    request.within = False
    return answers
