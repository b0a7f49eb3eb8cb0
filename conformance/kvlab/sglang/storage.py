"""SGLang's storage behind the host tier: the release's own file backend, in a temporary folder, and its threads.

The threads are the controller's own, but one runs at a time, and only as far as its next wait, file or copy of a host
page. Which one gets on is drawn.
"""

import json
import os
import random
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from queue import Queue
from types import SimpleNamespace
from typing import Any
from unittest.mock import patch

from kvattach.patches import Patches
from kvattach.sglang.release import Release
from kvlab.stubs import Arguments

FOLDER = "SGLANG_HICACHE_FILE_BACKEND_STORAGE_DIR"
SERVED = Arguments(
    hicache_host_memory_mode="cache",
    hicache_storage_prefetch_retry_max_attempts=3,
    hicache_storage_prefetch_retry_poll_interval=1,
)
"""The arguments of which the scheduler's lines read those of host memory."""
EXTRA = json.dumps({"prefetch_threshold": 1})
"""The extra configuration of a storage in which each page is looked up."""
ABORTED = 0.1
"""The probability that a request is aborted in one loop, while nothing has been read for it ..."""
ABORTED_AMID = 0.6
"""... and once a part of its prefetch has been read."""
BATCHES = (1, 4)
"""The pages that are read or written together, in releases with a constant for it: fewer than a prompt has."""
PACES = (0.8, 0.97)
"""The probability that one more thread gets on before the scheduler does."""


_HERE = threading.local()


class Threads:
    """The threads of one server's storage, or of one of its ranks."""

    def __init__(self, rng: random.Random, rank: int = 0, ranks: int = 1) -> None:
        """None yet."""
        self.rng, self.rank, self.ranks = rng, rank, ranks
        self._pace = rng.choice(PACES)
        self.all: list[Thread] = []
        self.current: Thread | None = None
        self.over = False
        self.driver = threading.Semaphore(0)
        """The driver waits for it while a thread runs."""

    def enter(self) -> None:
        """The calling thread is one of the server's, or of the rank's: its scheduler, or one of these."""
        _HERE.threads = self

    def make(self, target: Callable[[], None], daemon: bool = True) -> "Thread":
        """One more, in the place of `threading.Thread`."""
        return Thread(self, target)

    def advance(self) -> None:
        """Let some threads get on, or none."""
        while self.rng.random() < self._pace and self.step():
            continue

    def finish(self) -> None:
        """Let them get on until all wait for more to do."""
        while self.step():
            continue

    def step(self) -> bool:
        """Let one thread get on, if one has anything to do."""
        ready = [thread for thread in self.all if thread.is_alive() and thread.ready()]
        if ready:
            self.rng.choice(ready).step()
        return bool(ready)

    def pause(self, ready: Callable[[], bool] = lambda: True) -> None:
        """Where a thread waits: it gets on when the driver lets it, once it is ready. The driver never waits."""
        if self.current is not None:
            self.current.pause(ready)

    def end(self) -> None:
        """The run is over."""
        self.over = True
        for thread in self.all:
            thread.join()


_PLACE: dict[str, Callable[[Threads], Any]] = {
    "get_pipeline_model_parallel_rank": lambda _: 0,
    "get_pipeline_model_parallel_world_size": lambda _: 1,
    "get_tensor_model_parallel_rank": lambda threads: threads.rank,
    "get_tensor_model_parallel_world_size": lambda threads: threads.ranks,
    "get_parallel": lambda threads: SimpleNamespace(
        attn_dcp_rank=0, attn_dcp_size=1, dcp_size=1, pp_rank=0, pp_size=1, tp_rank=threads.rank, tp_size=threads.ranks
    ),
    "is_dp_attention_enabled": lambda _: False,
}
"""The answers of the imports that a controller asks for the place of its rank."""


class Thread:
    """One of them."""

    def __init__(self, threads: Threads, target: Callable[[], None]) -> None:
        """It does not run yet."""
        self._threads, self._target = threads, target
        self._turn = threading.Semaphore(0)
        self._error: Exception | None = None
        self._done = False
        self.ready: Callable[[], bool] = lambda: True
        self._real = threading.Thread(target=self._run, daemon=True)

    def start(self) -> None:
        """It runs when it is let."""
        self._threads.all.append(self)
        self._real.start()

    def _run(self) -> None:
        self._threads.enter()
        self._turn.acquire()
        try:
            with suppress(SystemExit):  # which ends the release's own loops
                self._target()
        except Exception as error:
            self._error = error
        self._done = True
        self._threads.driver.release()

    def step(self) -> None:
        """Let it run to its next wait."""
        self._threads.current = self
        self._turn.release()
        self._threads.driver.acquire()
        self._threads.current = None
        if self._error is not None:
            raise self._error

    def pause(self, ready: Callable[[], bool]) -> None:
        """Wait, in this thread."""
        self.ready = ready
        self._threads.driver.release()
        self._turn.acquire()
        if self._threads.over:
            sys.exit()

    def is_alive(self) -> bool:
        """Whether it has not ended."""
        return not self._done

    def join(self, timeout: float | None = None) -> None:
        """Let it run to its end, as the server has requested."""
        while not self._done:
            self.step()


class Waiting(Queue[Any]):
    """A queue at which a thread waits until there is something. A thread that is joined finds it empty."""

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        """The first item; `timeout` has no meaning."""
        if block:
            here().pause(lambda: not self.empty())
        return super().get(block=False)


def here() -> Threads:
    """The threads to which the calling one belongs, or whose scheduler it is."""
    threads: Threads = _HERE.threads
    return threads


@contextmanager
def stored(release: Release, seed: int) -> Iterator[Threads]:
    """A server that is made within has a storage, whose threads the driver lets get on."""
    threads = Threads(random.Random(f"{seed} storage"))
    threads.enter()
    with storing(release, [threads]):
        yield threads


@contextmanager
def storing(release: Release, all_threads: Sequence[Threads]) -> Iterator[None]:
    """The ranks of a server that are made within have a storage, each with the threads that it has entered."""

    def paused(original: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(original)
        def do(*args: Any, **kwargs: Any) -> Any:
            here().pause()
            return original(*args, **kwargs)

        return do

    stands_in = SimpleNamespace(Thread=lambda **more: here().make(**more), Event=threading.Event, Lock=threading.Lock)
    with tempfile.TemporaryDirectory(prefix="kvspec-sglang-") as folder, Patches() as patches:
        patches.set(release.controller, "threading", stands_in)
        patches.set(release.controller, "Queue", Waiting)
        for name, value in _PLACE.items():
            patches.set(release.controller, name, lambda value=value: value(here()))
        if release.scheduled:
            patches.set(release.controller, "STORAGE_BATCH_SIZE", all_threads[0].rng.choice(BATCHES))
            if hasattr(release.scheduler, "get_memory"):
                patches.set(release.scheduler, "get_memory", lambda: SERVED)
        copies = ("get_data_page", "set_from_flat_data_page")
        waits = ((release.storage.HiCacheFile, ("get", "set", "exists")), (release.host_class, copies))
        for owner, names in waits:
            for name in names:
                patches.set(owner, name, paused(getattr(owner, name)))
        with patch.dict(os.environ, {FOLDER: folder}):
            try:
                yield
            finally:
                for threads in all_threads:
                    threads.end()


def arguments(policy: str) -> dict[str, str | None]:
    """The arguments of a server with a storage; without a policy it has none."""
    return {
        "hicache_storage_backend": "file" if policy else None,
        "hicache_storage_backend_extra_config": EXTRA if policy else None,
        "hicache_storage_prefetch_policy": policy or "best_effort",
    }


def attach(release: Release, cache: Any, policy: str) -> None:
    """A server that runs gets a storage, as its release does that.

    Raises:
        RuntimeError: the release refuses it.
    """
    done, message = release.attachment.StorageAttachment(cache).attach("file", EXTRA, "", policy)
    if not done:
        raise RuntimeError(message)


def prefetch(memory: Any, req: Any) -> None:
    """A request that enters the queue asks for what the tree has not."""
    if memory.release.scheduled:
        asking = SimpleNamespace(tree_cache=memory.cache, enable_hicache_storage=True, enable_lmcache=False)
        memory.release.scheduler.Scheduler._prefetch_kvcache(asking, req)
        return
    found, node = memory.match(req), req.last_host_node
    if node.backuped or node is memory.cache.root_node:
        tokens = (req.origin_input_ids + req.output_ids)[found:]
        memory.cache.prefetch_from_storage(req.rid, node, tokens, node.get_last_hash_value(), None)


def prefetched(memory: Any, req: Any) -> bool:
    """Whether a request waits no longer; what was read for it is in the tree then."""
    return bool(memory.cache.check_prefetch_progress(_handle(req)))


def abort_chance(memory: Any, req: Any) -> float:
    """The probability that a waiting request is aborted in one loop: that of its prefetch's stage, or 0."""
    known = memory.cache.ongoing_prefetch
    asked = known.get(_handle(req), known.get(req.rid))
    if asked is None:
        return 0.0
    operation = next(part for part in asked if hasattr(part, "completed_tokens"))
    return ABORTED_AMID if operation.completed_tokens else ABORTED


def _handle(req: Any) -> Any:
    return getattr(req, "cache_request_handle", req.rid)


def abort(memory: Any, req: Any) -> None:
    """A request is aborted while it waits, and with it what is read for it."""
    aborted = memory.release.scheduled and getattr(memory.release.scheduler.Scheduler, "_release_aborted_request", None)
    if aborted:
        aborted(SimpleNamespace(tree_cache=memory.cache), req)
    else:
        memory.cache.release_aborted_request(req.rid)
