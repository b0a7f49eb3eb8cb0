"""A scheduler loop over SGLang's own classes, and a recorder that watches it.

    KVSPEC_SGLANG=0.5.10 python conformance/examples/sglang_loop.py /tmp/loop.jsonl
    kvspec check /tmp/loop.001.jsonl

The loop stands for a server: it takes plain requests and the turns of streaming sessions, prefills in chunks, decodes
in batches, retracts when memory is short, and handles results one step late, as SGLang's overlapped scheduler does. It
knows nothing of kvspec; `record` is the only line that does. `--measure` compares the loop with and without it.
"""

import argparse
import random
import statistics
import time
from collections import deque
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

from kvattach.recorder import record
from kvlab.sglang.adapter import chosen
from kvlab.sglang.adapter.engine import Engine, silence
from kvspec.events import Config

CHUNK = 24
"""Tokens that one prefill step takes of a prompt."""


SIZES = Config(page_size=4, num_pages=140, num_rows=16, max_context_len=256)
"""So small that some requests have to wait for others."""


class Client(NamedTuple):
    """A client that wants one answer, or several in a session."""

    prompts: list[list[int]]
    answer_len: int
    session: str | None


class Server:
    """SGLang's memory classes and a scheduler around them."""

    def __init__(self, engine: Engine, config: Config, *, overlap: bool = True) -> None:
        """Make SGLang's objects."""
        self.engine, self.config, self.overlap = engine, config, overlap
        self.pool = engine.pool(config)
        self.allocator = engine.allocator(config)
        self.cache = engine.prefix_cache(config, self.pool, self.allocator)
        if engine.session_cache is not None:
            self.cache = engine.session_cache(self.cache)
            self.sessions = engine.session_controller(self.cache)
        engine.server_args.page_size = config.page_size
        self.clients: dict[str, deque[list[int]]] = {}
        self.waiting: deque[Any] = deque()
        self.running: list[Any] = []
        self.chunked: Any = None
        self.results: deque[list[Any]] = deque()
        self.sampled = 1000
        self.steps = 0
        self.retracted = 0

    def submit(self, name: str, client: Client) -> None:
        """Take a client in; the turns of a session follow one another."""
        if client.session is None:
            self._enqueue(self.engine.request(name, client.prompts[0]), client.answer_len)
            return
        self.sessions.open(
            SimpleNamespace(session_id=client.session, capacity_of_str_len=1 << 20, streaming=True, timeout=None)
        )
        self.clients[client.session] = deque(client.prompts)
        self._next_turn(client.session, name, client.answer_len)

    def _next_turn(self, session: str, name: str, answer_len: int) -> None:
        prompts = self.clients[session]
        if not prompts:
            self.sessions.close(SimpleNamespace(session_id=session))
            return
        turn = self.engine.turn(self.sessions.get(session), f"{name}.{len(prompts)}", prompts.popleft())
        self._enqueue(turn, answer_len)

    def _enqueue(self, req: Any, answer_len: int) -> None:
        req.sampling_params.max_new_tokens = answer_len
        req.answer_len = answer_len
        self.waiting.append(req)

    def run(self) -> None:
        """Serve all clients."""
        while self.waiting or self.running or self.chunked or self.results:
            self.step()

    def step(self) -> None:
        """One round of the scheduler."""
        self.steps += 1
        batch = self._prefill() or self._decode()
        if batch:
            self.results.append(batch)
        if self.results and (len(self.results) > self.overlap or not batch):
            self._handle(self.results.popleft())

    # Prefill

    def _prefill(self) -> list[Any]:
        batch: list[Any] = []
        room = CHUNK
        if self.chunked is not None:
            if not self._has_room(CHUNK) and self.running:
                return []
            req, self.chunked = self.chunked, None
            self.cache.cache_unfinished_req(req, chunked=True)
            req.init_next_round_input()
            room -= self._take(req, room, batch)
        while self.waiting and room >= self.config.page_size and self.chunked is None:
            if len(self.running) + len(batch) >= self._rows():
                break
            req = self.waiting[0]
            req.init_next_round_input(self.cache)
            self.cache.inc_lock_ref(req.last_node)
            missing = len(self.engine.full_ids(req)) - len(req.prefix_indices)
            promised = sum(other.span[1] - other.span[0] + self.config.page_size for other in batch)
            if not self._has_room(missing + promised, evict=False):
                self.cache.dec_lock_ref(req.last_node)
                if not self.running and not batch:
                    raise RuntimeError("this loop needs a larger pool")
                break
            self.waiting.popleft()
            room -= self._take(req, room, batch)
        if batch:
            self._allocate(batch)
        return batch

    def _rows(self) -> int:
        """Rows that may be in use: idle sessions keep theirs."""
        return int(self.config.num_rows) - len(self.clients)

    def _take(self, req: Any, room: int, batch: list[Any]) -> int:
        start, end = len(req.prefix_indices), len(self.engine.full_ids(req))
        if end - start > room:
            end = start + room // self.config.page_size * self.config.page_size
            self.chunked = req
            self.engine.count_chunk(req, 1)
        self.engine.set_extend(req, start, end)
        req.span = start, end
        batch.append(req)
        return int(end - start)

    def _allocate(self, batch: list[Any]) -> None:
        ends = [req.span[1] for req in batch]
        lens = self.engine.int64(ends)
        counts = [req.span[1] - req.span[0] for req in batch]
        _, _, rows = self.engine.common.alloc_for_extend(
            self._batch(
                batch,
                prefix_lens=[req.span[0] for req in batch],
                extend_lens=counts,
                seq_lens=lens,
                seq_lens_cpu=lens,
                extend_num_tokens=sum(counts),
            )
        )
        for req, row, end in zip(batch, rows, ends, strict=True):
            req.req_pool_idx = int(row)
            req.kv_committed_len = req.kv_allocated_len = end
            req.is_retracted = False
            if req is not self.chunked:
                self.running.append(req)

    # Decode

    def _decode(self) -> list[Any]:
        while len(self.running) > 1 and not self._has_room(0):
            self._retract()
        if not self._has_room(0):
            raise RuntimeError("this loop needs a larger pool")
        batch = list(self.running)
        if batch:
            lens = self.engine.int64([req.kv_committed_len for req in batch])
            rows = self.engine.int64([req.req_pool_idx for req in batch])
            fields = self._batch(batch, seq_lens=lens, seq_lens_cpu=lens, req_pool_indices=rows)
            self.engine.common.alloc_for_decode(fields, token_per_req=1)
            for req in batch:
                req.kv_committed_len += 1
                req.kv_allocated_len += 1
        return batch

    def _has_room(self, tokens: int, *, evict: bool = True) -> bool:
        """Whether there is room for `tokens` more, beside one page for each running request."""
        needed = tokens + (len(self.running) + 1) * self.config.page_size
        if evict:
            self.engine.common.evict_from_tree_cache(self.cache, needed)
            return bool(self.allocator.available_size() >= needed)
        return bool(self.allocator.available_size() + self.cache.evictable_size() >= needed)

    def _retract(self) -> None:
        """Send the request back that came last; a turn only once, as releases up to 0.5.15 lose its session else."""
        req = next((req for req in reversed(self.running) if req.session is None or not req.retraction_count), None)
        if req is None:
            raise RuntimeError("this loop needs a larger pool")
        self.running.remove(req)
        self.engine.release_kv_cache(req, self.cache, is_insert=False)
        req.reset_for_retract()
        req.span = None
        self.retracted += 1
        self.waiting.appendleft(req)

    # Results

    def _handle(self, batch: list[Any]) -> None:
        """Tokens come in. In a decode step's results, and only there, frees are grouped, as SGLang groups them."""
        decoded = all(req.span is None for req in batch)
        if decoded:
            self.allocator.free_group_begin()
        for req in batch:
            if req.finished() or req.is_retracted or req.req_pool_idx is None:
                continue
            if self._was_chunk(req):
                self.engine.count_chunk(req, -1)
                continue
            prefilled = req.span is not None
            req.span = None
            self.sampled += 1
            req.output_ids.append(self.sampled)
            if len(req.output_ids) >= req.answer_len:
                self._finish(req)
            elif prefilled:
                self.cache.cache_unfinished_req(req)
        if decoded:
            self.allocator.free_group_end()

    def _was_chunk(self, req: Any) -> bool:
        name = "inflight_middle_chunks" if hasattr(req, "inflight_middle_chunks") else "is_chunked"
        return bool(getattr(req, name) > 0)

    def _finish(self, req: Any) -> None:
        self.running.remove(req)
        req.finished_len = len(req.output_ids)
        req.finished_reason = self.engine.batches.FINISH_LENGTH(req.finished_len)
        session = req.session
        self.engine.release_kv_cache(req, self.cache, is_insert=True)
        if session is not None:
            self._next_turn(session.session_id, req.rid.partition(".")[0], req.answer_len)
            if session.session_id not in self.sessions.sessions:
                del self.clients[session.session_id]

    def _batch(self, reqs: list[Any], **fields: object) -> Any:
        return SimpleNamespace(
            reqs=reqs,
            tree_cache=self.cache,
            req_to_token_pool=self.pool,
            token_to_kv_pool_allocator=self.allocator,
            device="cpu",
            model_config=SimpleNamespace(is_encoder_decoder=False),
            maybe_evict_swa=lambda: None,
            **fields,
        )


def clients(count: int, *, sessions: bool, seed: int = 1) -> list[Client]:
    """People whose prompts share beginnings; every third has a conversation of three turns."""
    chance = random.Random(seed)
    made = []
    for number in range(count):
        shared = [chance.randrange(3)] * chance.choice((0, 8, 16, 24))
        prompt = [*shared, *(chance.randrange(900) for _ in range(chance.randrange(1, 40)))]
        talks = sessions and number % 3 == 0
        prompts = [prompt, *([chance.randrange(900)] * chance.randrange(1, 12) for _ in range(2 * talks))]
        made.append(Client(prompts, chance.randrange(1, 20), f"s{number}" if talks else None))
    return made


def serve(engine: Engine, config: Config, people: list[Client], path: Path | None, *, overlap: bool = True) -> Server:
    """Serve some people, with a recorder if there is a path."""
    server = Server(engine, config, overlap=overlap)
    recorder = None if path is None else record(server.cache, path)
    try:
        for number, client in enumerate(people):
            server.submit(f"r{number}", client)
        server.run()
    finally:
        if recorder is not None:
            recorder.stop()
    return server


def measure(engine: Engine, path: Path, rounds: int = 7) -> Iterator[str]:
    """Measure a recorder: 64 requests, 200 decode steps each, in pages of one token (no kernel is emulated then)."""
    config = Config(page_size=1, num_pages=32_000, num_rows=64, max_context_len=1024)
    people = [Client([[number] * (200 + number)], 200, None) for number in range(64)]
    thread: dict[bool, list[float]] = {False: [], True: []}
    wall: dict[bool, list[float]] = {False: [], True: []}
    steps = 0
    for number in range(2 * rounds):
        recorded = number % 2 == 1
        begin, busy = time.perf_counter(), time.thread_time()
        steps = serve(engine, config, people, path if recorded else None).steps
        thread[recorded].append((time.thread_time() - busy) / steps * 1e6)
        wall[recorded].append((time.perf_counter() - begin) / steps * 1e6)
    for name, times in (("scheduler's thread", thread), ("wall clock", wall)):
        alone, watched = (statistics.median(times[one]) for one in (False, True))
        yield f"{name}: {alone:.0f} us a step alone, {watched:.0f} us recorded ({steps} steps, {len(people)} requests)"


def main() -> None:
    """Serve, and record."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("path", type=Path, help="where to record to")
    parser.add_argument("--clients", type=int, default=30)
    parser.add_argument("--measure", action="store_true")
    arguments = parser.parse_args()
    engine = Engine(chosen())
    silence()
    if arguments.measure:
        for line in measure(engine, arguments.path):
            print(line)
        return
    people = clients(arguments.clients, sessions=engine.session_cache is not None)
    server = serve(engine, SIZES, people, arguments.path)
    held = server.allocator.available_size() + server.cache.evictable_size()
    lost = SIZES.num_pages - held // SIZES.page_size
    print(f"{server.steps} steps, {server.retracted} retractions, {lost} pages lost")


if __name__ == "__main__":
    main()
