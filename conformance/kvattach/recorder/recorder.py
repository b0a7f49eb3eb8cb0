"""Watches the live memory objects of an SGLang process.

It wraps SGLang's own methods: those of the objects in this process (`match_prefix`, `cache_unfinished_req`, `evict`,
`release_session`, `reset` of the cache; `alloc...`, `free`, `free_group_end` of the allocator), and the functions
`alloc_for_extend`, `alloc_for_decode` and `release_kv_cache`, in all SGLang modules that hold them. Each still does the
same; its arguments and results are noted. An error here ends the recording, and never reaches the engine.
"""

import importlib
import logging
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from types import ModuleType
from typing import Any

from kvattach.patches import Patches
from kvattach.recorder.known import NotRecordable, producer, why_not
from kvattach.recorder.ledger import Ledger, Prefill
from kvattach.recorder.slots import Read, Slots
from kvattach.recorder.tokens import Hidden, as_they_are
from kvspec.events import Config
from kvspec.pages import ceil_pages
from kvtrace.header import VERSION
from kvtrace.operations import Header
from kvtrace.sink import Sink

_log = logging.getLogger(__name__)

_COMMON = "sglang.srt.mem_cache.common"

REPORT_EVERY = 16
"""Releases between two reports of the engine's own figures."""


class _Unknown(Exception):
    """The engine did something for which a trace has no operation."""


def record(
    tree_cache: Any,
    path: str | Path,
    *,
    raw_tokens: bool = False,
    part_bytes: int = 256 << 20,
    max_bytes: int = 8 << 30,
    keep: int = 2,
    max_waiting: int = 200_000,
) -> "Recorder":
    """Record the operations of `tree_cache`, its rows and its pages in files beside `path`.

    `raw_tokens` writes token ids unchanged, instead of numbers that hide them. A recording continues in a further file
    after `part_bytes`, and ends at `max_bytes`, or when more than `max_waiting` lines wait to be written. The last
    `keep` recordings are kept.

    Raises:
        NotRecordable: the kind of cache is unknown: a hybrid pool, a host cache, bigram keys.
    """
    reason = why_not(tree_cache)
    if reason is not None:
        raise NotRecordable(reason)
    sink = Sink(Path(path), part_bytes=part_bytes, max_bytes=max_bytes, keep=keep, max_waiting=max_waiting)
    return Recorder(tree_cache, sink, raw_tokens=raw_tokens)


class Recorder:
    """Records until it is stopped, or until an unknown operation."""

    def __init__(self, tree_cache: Any, sink: Sink, *, raw_tokens: bool) -> None:
        """Install the hooks. `record` first checks that the kind of cache is known."""
        self._cache = tree_cache
        self._pool = tree_cache.req_to_token_pool
        self._allocator = tree_cache.token_to_kv_pool_allocator
        self._page_size = int(self._allocator.page_size)
        self._raw_tokens = raw_tokens
        self._sink = sink
        device = "cpu" if str(self._allocator.device) == "cpu" else "cuda"
        self._slots = Slots(importlib.import_module("torch"), device)
        self._ledger: Ledger | None = None
        self._first_row = 0
        self._armed = True
        self.problem: str | None = None
        """Why the last recording ended; `None` during a recording, and before the first."""
        self._frees: list[list[Read]] = []
        """The slots freed by the operations in progress, the innermost last."""
        self._allocating = 0
        self._admitting = False
        self._releases = 0
        self._regrouping = False
        self._patches = Patches()
        self._install()
        self._begin_if_empty()

    @property
    def files(self) -> list[Path]:
        """The files so far, in order."""
        return self._sink.files

    @property
    def recording(self) -> bool:
        """Whether a recording is in progress."""
        return self._ledger is not None

    def stop(self) -> None:
        """Remove the hooks, write the waiting lines, and close the file."""
        self._armed = False
        self._end(None)
        self._patches.undo()
        self._sink.close()

    def flush(self, timeout: float = 10.0) -> bool:
        """Wait until all operations so far are in the file."""
        return self._sink.drain(timeout)

    # Hooks

    def _install(self) -> None:
        cache, allocator = self._cache, self._allocator
        for thing, name, hook in (
            (cache, "match_prefix", self._match_prefix),
            (cache, "cache_unfinished_req", self._cache_unfinished_req),
            (cache, "evict", self._evict),
            (cache, "release_session", self._release_session),
            (cache, "reset", self._reset),
            (allocator, "alloc", self._alloc),
            (allocator, "alloc_extend", self._alloc),
            (allocator, "alloc_decode", self._alloc),
            (allocator, "free", self._free),
            (allocator, "free_group_end", self._free_group_end),
        ):
            original = getattr(thing, name, None)
            if original is not None:
                self._patches.set(thing, name, _hooked(original, hook))
        common = importlib.import_module(_COMMON)
        functions: dict[str, Callable[..., Any]] = {
            "alloc_for_extend": self._alloc_for_extend,
            "alloc_for_decode": self._alloc_for_decode,
            "release_kv_cache": self._release_kv_cache,
        }
        for name, function in functions.items():
            original = getattr(common, name)
            wrapped = _hooked(original, function)
            for module in [one for one in sys.modules.values() if _holds(one, name, original)]:
                self._patches.set(module, name, wrapped)

    def _match_prefix(self, original: Callable[..., Any], params: Any, *args: Any, **kwargs: Any) -> Any:
        self._quiet_moment()
        req = getattr(params, "req", None)
        with self._operation() as frees:
            result = original(params, *args, **kwargs)
        if req is not None:
            self._note(lambda ledger: self._matched(ledger, params, req, result, frees))
        elif frees:
            self._note(_unknown("pages were freed while a prefix was looked up for no request"))
        return result

    def _matched(self, ledger: Ledger, params: Any, req: Any, result: Any, frees: list[Read]) -> None:
        if ledger.is_running(req):
            return
        length = len(result.device_indices)
        if getattr(result, "host_hit_length", 0):
            raise _Unknown("a prefix was found in the host's memory")
        known = len(req.origin_input_ids) + len(req.output_ids)
        if len(params.key.token_ids) < known - 1:
            raise _Unknown("a request matched less than its tokens allow: it wants logprobs of its prompt")
        protected = getattr(result, "cache_protected_len", None)
        ledger.match(req, length, length if protected is None else int(protected), frees)

    def _cache_unfinished_req(self, original: Callable[..., Any], req: Any, *args: Any, **kwargs: Any) -> Any:
        self._quiet_moment()
        with self._operation() as frees:
            result = original(req, *args, **kwargs)
        chunked = bool(kwargs.get("chunked", args[0] if args else False))
        self._note(lambda ledger: ledger.cache_unfinished(req, chunked, int(req.cache_protected_len), frees))
        return result

    def _evict(self, original: Callable[..., Any], params: Any, *args: Any, **kwargs: Any) -> Any:
        with self._operation() as frees:
            result = original(params, *args, **kwargs)
        wanted = ceil_pages(max(0, int(getattr(params, "num_tokens", params))), self._page_size)
        if wanted or frees:
            self._note(lambda ledger: ledger.evict(max(1, wanted), frees, admitting=self._admitting))
        return result

    def _release_session(self, original: Callable[..., Any], session_id: str, *args: Any, **kwargs: Any) -> Any:
        if self._frees:  # a part of another operation
            return original(session_id, *args, **kwargs)
        self._quiet_moment()
        with self._operation() as frees:
            result = original(session_id, *args, **kwargs)
        self._releases += 1
        self._note(lambda ledger: ledger.close_session(str(session_id), frees))
        return result

    def _reset(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        self._end("the cache was flushed")
        return original(*args, **kwargs)

    def _alloc(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        if not self._allocating:
            self._note(_unknown("pages were allocated neither for a prefill nor for a decode step of one token"))
        return original(*args, **kwargs)

    def _free(self, original: Callable[..., Any], free_index: Any, *args: Any, **kwargs: Any) -> Any:
        if not self._regrouping and free_index.numel():
            self._note(lambda _: self._freed(free_index))
        return original(free_index, *args, **kwargs)

    def _freed(self, free_index: Any) -> None:
        if not self._frees:
            raise _Unknown("pages were freed outside any operation that is known")
        self._frees[-1].append(self._slots.capture(free_index))

    def _free_group_end(self, original: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
        """The allocator now frees the slots that were noted one by one."""
        self._regrouping = True
        try:
            return original(*args, **kwargs)
        finally:
            self._regrouping = False

    def _alloc_for_extend(self, original: Callable[..., Any], batch: Any, *args: Any, **kwargs: Any) -> Any:
        if batch.req_to_token_pool is not self._pool:
            return original(batch, *args, **kwargs)
        self._quiet_moment()
        self._admitting = True
        try:
            with self._operation(allocates=True):
                result = original(batch, *args, **kwargs)
        finally:
            self._admitting = False
        self._note(lambda ledger: self._extended(ledger, batch, result))
        return result

    def _extended(self, ledger: Ledger, batch: Any, result: Any) -> None:
        slots, _, rows = result
        lengths = zip(batch.reqs, batch.prefix_lens, batch.extend_lens, _numbers(rows), strict=True)
        prefills = [
            Prefill(req, int(start), int(start) + int(count), row - self._first_row)
            for req, start, count, row in lengths
        ]
        ledger.extend(prefills, self._slots.capture(slots))

    def _alloc_for_decode(
        self, original: Callable[..., Any], batch: Any, token_per_req: int, *args: Any, **kwargs: Any
    ) -> Any:
        if batch.req_to_token_pool is not self._pool:
            return original(batch, token_per_req, *args, **kwargs)
        self._quiet_moment()
        with self._operation(allocates=True):
            result = original(batch, token_per_req, *args, **kwargs)
        self._note(lambda ledger: self._decoded(ledger, batch, token_per_req, result))
        return result

    def _decoded(self, ledger: Ledger, batch: Any, token_per_req: int, slots: Any) -> None:
        if token_per_req != 1:
            raise _Unknown("a decode step of more than one token")
        starts = [int(req.kv_committed_len) for req in batch.reqs]
        new = any(start % self._page_size == 0 for start in starts)
        ledger.decode(batch.reqs, starts, self._slots.capture(slots) if new else None)

    def _release_kv_cache(
        self, original: Callable[..., Any], req: Any, tree_cache: Any, is_insert: bool = True, *args: Any, **kwargs: Any
    ) -> Any:
        if tree_cache.req_to_token_pool is not self._pool:
            return original(req, tree_cache, is_insert, *args, **kwargs)
        self._quiet_moment()
        stays_session = req.session is not None and req.session.streaming
        with self._operation() as frees:
            result = original(req, tree_cache, is_insert, *args, **kwargs)
        self._releases += 1
        self._note(lambda ledger: _released(ledger, req, is_insert, stays_session, frees))
        return result

    # Around every hook

    @contextmanager
    def _operation(self, *, allocates: bool = False) -> Iterator[list[Read]]:
        """Collect the slots freed in this context. If the engine raises, its state is unknown, and recording ends."""
        frees: list[Read] = []
        self._frees.append(frees)
        self._allocating += allocates
        try:
            yield frees
        except BaseException as error:
            self._armed = False
            self._end(f"the engine raised {type(error).__name__}: {error}")
            raise
        finally:
            self._allocating -= allocates
            self._frees.pop()

    def _note(self, note: Callable[[Ledger], object]) -> None:
        """Let the ledger note an action, if there is a recording. An error here ends the recording."""
        if self._ledger is None:
            return
        try:
            note(self._ledger)
        except Exception as error:
            self._armed = False
            reason = str(error) if isinstance(error, _Unknown) else f"{type(error).__name__}: {error}"
            self._end(reason)
        if self._sink.problem is not None:
            self._end(self._sink.problem)

    def _quiet_moment(self) -> None:
        """Between two operations: begin a recording if one can begin, report figures if it is time."""
        if self._frees:
            return
        if self._ledger is None:
            self._begin_if_empty()
        elif self._releases >= REPORT_EVERY and self._allocator.is_not_in_free_group:
            self._releases = 0
            available, rows = int(self._allocator.available_size()), len(self._pool.free_slots)
            self._note(lambda ledger: ledger.report(available, rows))

    def _begin_if_empty(self) -> None:
        if not self._armed:
            return
        try:
            config = self._config()
        except Exception as error:
            self._armed = False
            self._end(f"{type(error).__name__}: {error}")
            return
        if config is None:
            return
        self._first_row = min(self._pool.free_slots)
        self.problem = None
        self._sink.begin(Header(VERSION, producer(), config))
        encode = as_they_are if self._raw_tokens else Hidden()
        self._ledger = Ledger(self._sink, self._page_size, encode)

    def _config(self) -> Config | None:
        """The sizes of the memory; `None` while the engine holds anything."""
        pages = int(self._allocator.available_size()) // self._page_size
        rows = len(self._pool.free_slots)
        if pages != int(self._allocator.size) // self._page_size or rows != int(self._pool.size):
            return None
        inner = getattr(self._cache, "inner", self._cache)
        prefix_cache = not (inner.is_chunk_cache() or getattr(inner, "disable", False))
        return Config(self._page_size, pages, rows, int(self._pool.req_to_token.shape[1]), prefix_cache)

    def _end(self, reason: str | None) -> None:
        if self._ledger is None:
            return
        ledger, self._ledger = self._ledger, None
        self.problem = reason
        try:
            ledger.end()
        except Exception:
            _log.exception("the last lines of the recording are lost")
        self._sink.end()
        if reason is not None:
            _log.warning("the recording ends: %s", reason)


def _hooked(original: Callable[..., Any], hook: Callable[..., Any]) -> Callable[..., Any]:
    def hooked(*args: Any, **kwargs: Any) -> Any:
        return hook(original, *args, **kwargs)

    hooked.__wrapped__ = original  # type: ignore[attr-defined]
    return hooked


def _holds(module: ModuleType, name: str, value: object) -> bool:
    return module.__name__.startswith("sglang.") and vars(module).get(name) is value


def _unknown(reason: str) -> Callable[[Ledger], None]:
    def note(_: Ledger) -> None:
        raise _Unknown(reason)

    return note


def _released(ledger: Ledger, req: Any, is_insert: bool, is_turn: bool, frees: list[Read]) -> None:
    if not ledger.is_running(req):
        if frees:
            raise _Unknown(f"pages of request {req.rid} were freed, which does not run")
        return
    aborted = type(req.finished_reason).__name__ == "FINISH_ABORT"
    if req.finished_reason is None and not is_insert:
        ledger.retract(req, frees)
    elif aborted and (is_turn or not is_insert):
        ledger.abort(req, frees)
    else:
        ledger.finish(req, frees)


def _numbers(rows: Any) -> list[int]:
    """Row numbers, which the engine keeps on the host."""
    if isinstance(rows, list):
        return [int(row) for row in rows]
    if rows.device.type != "cpu":
        raise _Unknown("the numbers of rows are on the device")
    numbers: list[int] = rows.tolist()
    return numbers
