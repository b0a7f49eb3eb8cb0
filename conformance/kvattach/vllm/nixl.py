"""Hooks into vLLM's NIXL connector: leases, transfers between the memories of two servers, and their messages.

A server is a host, named by its `engine_id`. Its scheduler and its worker are one process; with tensor parallelism
workers are processes of their own, which are not observed. A transfer consists of the blocks that the library is given:
it begins when it is posted, and ends when its handle is released. A finished request's pages are kept by a lease, a
separate holder whose name the other server knows.
"""

import logging
import sys
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from math import gcd
from typing import Any

import msgspec

from kvattach.vllm.launches import STREAM
from kvattach.vllm.offload import Attached
from kvattach.vllm.residency import POOL, Group, Run
from kvattach.vllm.workers import in_this_process
from kvspec.memory.events import Begin, End, EndHolder, Receive, Send, Transfer, Use

_log = logging.getLogger("kvspec")

PACKAGE = "vllm.distributed.kv_transfer.kv_connector.v1.nixl"
POSTS = {
    "pull_worker": ("NixlPullConnectorWorker", "_read_blocks"),
    "push_worker": ("NixlPushConnectorWorker", "_xfer_blocks"),
}
"""The module of a kind of worker -> the worker's class, and the function that posts the transfers of one request."""
HEARTBEAT, REGISTRATION = b"HB:", b"PUSH_REG:"
"""The prefixes of notifications: of one that renews a lease, and of one that names the pages to fill."""
REMEMBERED = 10_000
"""The most sent messages that are remembered."""


@dataclass
class Coming:
    """Tokens of a request that are to arrive here, or to be filled on the other server."""

    run: Run
    stop: int
    """The number of tokens that are present afterwards."""
    places: dict[int, tuple[Group, int]] = field(default_factory=dict)
    """Page -> its group, and its index in the group's table."""


@dataclass
class Post:
    """A transfer of blocks by the library."""

    request: str
    remote: str
    """The request on the other server."""
    engine: str
    """The other server."""
    writes: bool
    """Whether it writes the other server's pages."""
    ours: int
    theirs: int
    """The number of parts of a page here and on the other server: a block of one may be several of the other."""
    pairs: list[tuple[tuple[int, int], tuple[int, int]]]
    """Pairs of a local and a remote part of a page, each with the page and the number of the part."""
    id: str = ""
    done: bool = False
    written: list[Use] = field(default_factory=list)
    """The pages that it writes."""


class Nixl:
    """Emits the leases, transfers and messages of the scheduler's NIXL connector."""

    def __init__(self, attached: Attached, queue: Callable[[Begin], None]) -> None:
        """Nothing is hooked before a scheduler has such a connector. `queue` puts an operation behind the last pass."""
        self._attached, self._queue = attached, queue
        self._engine = ""
        self._asked: dict[str, int] = {}
        """Request -> the first token that is to arrive."""
        self._coming: dict[str, Coming] = {}
        self._posting: tuple[Any, str, str, str] | None = None
        """The worker, the request, its name there and the other server of the transfer that is being made."""
        self._posts: dict[Any, Post] = {}
        """Handle of the library -> the transfer."""
        self._said: dict[str, int] = {}
        """Messages, and how often each was sent."""
        self._numbers = 0
        self._watched: list[Any] = []
        """The hooked agents of the library."""
        self._hooked = False

    def start(self, scheduler: Any) -> str | None:
        """A new scheduler begins without transfers. Returns the host's name if its connector is NIXL's and hooked."""
        connector = scheduler.connector
        side = getattr(connector, "connector_scheduler", None)
        if f"{PACKAGE}.pull_worker" not in sys.modules or not type(side).__module__.startswith(f"{PACKAGE}."):
            return None
        if not in_this_process(scheduler):
            _log.warning("kvspec: NIXL's transfers are not recorded: its workers are processes of their own")
            return None
        for memory in (self._asked, self._coming, self._posts, self._said):
            memory.clear()
        self._engine = connector.engine_id
        hooks = self._attached.hooks
        hooks.hook(side, "get_num_new_matched_tokens", after=self._matched)
        hooks.hook(side, "update_state_after_alloc", before=self._comes)
        hooks.hook(side, "request_finished", after=self._finished)
        if not self._hooked:
            self._hooked = True
            for name, (kind, posts) in POSTS.items():
                worker = getattr(sys.modules[f"{PACKAGE}.{name}"], kind)
                hooks.hook(worker, "start_load_kv", before=lambda worker, _: self._watch(worker))
                hooks.hook(worker, "_get_new_notifs", after=self._heard)
                hooks.hook(worker, "post_process_device_kv_on_receive", before=self._converts)
                hooks.watch(worker, "start_load_kv")
                hooks.watch(worker, "get_transfer_results")
                self._within(worker, posts)
            pushes = sys.modules[f"{PACKAGE}.push_worker"].NixlPushConnectorWorker
            hooks.hook(pushes, "_handle_push_reg_notif", before=lambda _, message: self._fills(Receive, message))
            hooks.hook(pushes, "get_transfer_results", after=self._filled)
        return self._engine

    # The scheduler

    def _matched(self, _: None, __: Any, request: Any, num_computed_tokens: int) -> None:
        self._asked[request.request_id] = num_computed_tokens

    def _comes(self, request: Any, blocks: Any, num_external_tokens: int) -> None:
        """Pages are allocated for tokens of the other server, which has said that they are ready."""
        start, params = self._asked.pop(request.request_id, 0), request.kv_transfer_params or {}
        if not params.get("do_remote_prefill"):
            return
        if params.get("remote_block_ids"):
            self._attached.emit(Receive(f"ready {params['remote_engine_id']} {params['remote_request_id']}"))
        self._place(request, blocks.get_block_ids(), start, start + num_external_tokens)

    def _place(self, request: Any, rows: Any, start: int, stop: int) -> None:
        """Note the page of each of these tokens, and unify its label with that on the other server."""
        for name in self._coming.keys() - self._attached.runs.keys():
            del self._coming[name]
        coming = Coming(self._attached.runs[request.request_id], stop)
        for group, row in zip(self._attached.groups, rows, strict=True):
            self._attached.emit(*coming.run.begins(group, stop))
            for index in range(start // group.size, -(-stop // group.size)):
                if row[index]:
                    coming.places[row[index]] = group, index
        self._coming[request.request_id] = coming

    def _finished(self, _: None, answer: tuple[bool, Any], request: Any, rows: Any) -> None:
        """A finished request's pages are kept for the other server."""
        run = self._attached.runs.get(request.request_id)
        if not answer[0] or run is None or run.keeper != run.name:
            return
        self._place(request, rows, 0, request.num_computed_tokens)
        run.keeper = f"lease {request.request_id}"
        self._attached.emit(Transfer(run.name, run.keeper), EndHolder(run.name))
        self._attached.emit(Send(f"ready {self._engine} {request.request_id}"))

    # The worker

    def _within(self, worker: Any, name: str) -> None:
        """Note for which request a function makes transfers."""
        original, hooks = getattr(worker, name), self._attached.hooks

        def within(*args: Any, **named: Any) -> Any:
            self._posting = args[0], named["request_id"], named["remote_request_id"], named["dst_engine_id"]
            try:
                return original(*args, **named)
            finally:
                self._posting = None

        within.__wrapped__ = original  # type: ignore[attr-defined]
        hooks.set(worker, name, within)

    def _watch(self, worker: Any) -> None:
        """Hook the library's agent of a worker, once."""
        agent = worker.nixl_wrapper
        if any(agent is one for one in self._watched):
            return
        self._watched.append(agent)
        hooks = self._attached.hooks
        hooks.hook(agent, "make_prepped_xfer", after=self._made)
        hooks.hook(agent, "transfer", after=self._posted)
        hooks.hook(agent, "check_xfer_state", after=self._checked)
        hooks.hook(agent, "release_xfer_handle", after=self._released)
        hooks.hook(agent, "send_notif", after=lambda _, __, name, notif_msg: self._says(worker, name, notif_msg))

    def _made(self, _: None, handle: Any, kind: str, __: Any, local: Any, ___: Any, remote: Any, **more: Any) -> None:
        if self._posting is None:
            return
        worker, request, name, engine = self._posting
        info = worker.transfer_topo.get_engine_info(engine)
        ratio = worker.block_size // info.remote_block_size
        ours, theirs = ratio * worker._physical_blocks_per_logical_kv_block, info.remote_physical_blocks_per_logical
        joint = gcd(ours, theirs)
        here = _parts(local, worker.num_blocks * ratio, joint, ours)
        there = _parts(remote, worker.dst_num_blocks[engine], joint, theirs)
        pairs = [*dict.fromkeys(zip(here, there, strict=True))]
        self._posts[handle] = Post(request, name, engine, kind == "WRITE", ours // joint, theirs // joint, pairs)

    def _posted(self, _: None, __: Any, handle: Any) -> None:
        """Blocks are read from the other server, or written there. That server is notified at the end."""
        post = self._posts[handle]
        coming = self._coming.get(post.request)
        holder = None if coming is None else coming.run.keeper
        self._numbers += 1
        post.id = f"{'write' if post.writes else 'read'} {post.request} {self._numbers}"
        copies = list[tuple[Use, Use]]()
        for (ours, part), (theirs, other) in post.pairs:
            here, there = Use(None, POOL, [ours], holder=holder), Use(None, f"{post.engine}/{POOL}", [theirs])
            if coming is not None and ours in coming.places:
                self._means(post, coming, here, part, there, other)
            if not post.writes:  # prefill does not know the name of decode's holder of these pages
                there.holder = f"{post.engine}/lease {post.remote}"
            copies.append((here, there) if post.writes else (there, here))
        post.written = [
            Use(None, target.pool, [*target.pages], target.start, target.stop, holder=target.holder)
            for _, target in copies
        ]
        self._attached.emit(Begin(post.id, copies=copies, at="transfer"))
        self._attached.emit(Send(self._message(post.engine, post.remote), after=[post.id]))

    def _means(self, post: Post, coming: Coming, here: Use, part: int, there: Use, other: int) -> None:
        """Set the slots of a local and of a remote part of a page, and their labels on either server."""
        run = coming.run
        group, index = coming.places[int(here.pages[0])]  # type: ignore[arg-type]
        size = group.size // post.ours
        first = index * group.size + part * size
        left = coming.stop - first
        slots = min(size, left) if left > 0 else size
        if post.ours == post.theirs and slots == size:  # includes the slots that no token of the group uses
            slots = group.page_size
        here.start, here.stop = part * size, part * size + slots
        there.start, there.stop = other * size, other * size + slots
        if left <= 0:  # no token is meant there
            return
        here.labels = there.labels = [run.label(group, index)]
        if post.ours != post.theirs:
            groups = [replace(one, size=one.size * post.theirs // post.ours) for one in self._attached.groups]
            theirs = groups[group.number]
            there.labels = [Run(run.name, run.request, groups).shared(theirs, first // theirs.size, coming.stop)]

    def _checked(self, _: None, state: str, handle: Any) -> None:
        if handle in self._posts:
            self._posts[handle].done |= state == "DONE"

    def _released(self, _: None, __: Any, handle: Any) -> None:
        """The library has ended a transfer: it is done, or has failed."""
        post = self._posts.pop(handle, None)
        if post is not None and post.id:
            self._attached.emit(End(post.id, unwritten=[] if post.done else post.written))
            if not post.writes:
                self._attached.emit(Send(over(post.engine, post.remote)))

    def _converts(self, _: Any, ratio: int, received: Any, convert: bool = True) -> None:
        """Blocks of another length have arrived: the worker reorders them into its own blocks, and clears the rest."""
        copies, cleared = list[tuple[Use, Use]](), list[Use]()
        for number, pages, parts in received:
            group = self._attached.groups[number]
            size = group.size // ratio
            for index, page in enumerate(pages):
                there = max(0, min(group.size, (parts - index * ratio) * size))
                if convert and there:
                    copies.append((Use(None, POOL, [page], 0, there), Use(None, POOL, [page], 0, there)))
                if there < group.size:
                    cleared.append(Use(None, POOL, [page], there, group.size, ["cleared"]))
        if copies or cleared:
            self._numbers += 1
            name = f"convert {self._numbers}"
            self._queue(Begin(name, STREAM, [], cleared, copies, at="post_process"))

    def _says(self, worker: Any, name: str, message: bytes) -> None:
        """The other server learns that its pages are not needed, or which ones of this one to fill."""
        if message.startswith(REGISTRATION):
            self._fills(Send, message)
        elif not message.startswith(HEARTBEAT):
            engine = next(engine for engine, agents in worker._remote_agents.items() if name in agents.values())
            self._attached.emit(Send(self._message(engine, message.decode().rsplit(":", 1)[0])))

    def _message(self, engine: str, request: str) -> str:
        """The message that the pages are filled. Only the first has an effect, so a further one has another name."""
        message = f"done {engine} {request}"
        times = self._said[message] = self._said.pop(message, 0) + 1
        if len(self._said) > REMEMBERED:
            del self._said[next(iter(self._said))]
        return message if times == 1 else f"{message}, {times}"

    def _fills(self, kind: type[Send] | type[Receive], message: bytes) -> None:
        """Decode's pages for a request are registered with prefill."""
        data = msgspec.msgpack.decode(message[len(REGISTRATION) :])
        self._attached.emit(kind(f"fill {data['decode_engine_id']} {data['request_id']}"))

    def _filled(self, _: None, results: Any, __: Any) -> None:
        """Decode sees that its pages are filled."""
        for request in results.finished_recving - results.failed_recving:
            self._attached.emit(Receive(f"done {self._engine} {request}"))

    def _heard(self, _: None, requests: set[str], __: Any) -> None:
        for request in requests:
            self._attached.emit(Receive(f"done {self._engine} {request}"))


def over(engine: str, request: str) -> str:
    """The message that no transfer of a request's pages is under way any more.

    No engine receives it: a lease ends by the clock, which orders no two servers. A drive with one clock may do so.
    """
    return f"over {engine} {request}"


def _parts(ids: Any, blocks: int, joint: int, parts: int) -> list[tuple[int, int]]:
    """The page and the part of each descriptor. Descriptors number the blocks of one region after the other.

    A page has `parts` blocks, of which `joint` make one part.
    """
    return [divmod(int(id) % blocks // joint, parts // joint) for id in ids]
