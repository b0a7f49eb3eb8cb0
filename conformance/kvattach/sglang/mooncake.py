"""Hooks into SGLang's disaggregated prefill and decode with Mooncake: remote writes, messages, metadata slots.

A server is a host. Prefill queues a remote write of its own pages into decode's. It begins when the library is called,
and ends when the library reports that it is done. A failed write may go on, and no engine learns when it ends. The
metadata of a request, with its first token, are in slots of a separate pool, which is written the same way.
"""

import threading
from functools import partial
from typing import Any

from kvattach.hooks import Hooks, chained
from kvattach.sglang.hooks import Attached
from kvattach.sglang.view import KV, METADATA, Stay
from kvspec.memory.events import Begin, End, EndHolder, Receive, Send, Take, Unify, Use
from kvspec.memory.events import Release as Released

REMEMBERED = 10_000
"""The most sent messages that are remembered."""

PART = -1
"""Instead of a token before those of a part of a page. Texts have other hashes in each process."""


class Chunks:
    """The chunk that each thread of prefill transfers.

    A thread waits for its first chunk as soon as it starts, so this is hooked before.
    """

    def __init__(self, hooks: Hooks, modules: Any) -> None:
        """Install the hook; `modules` are the release's modules of transfers."""
        self._chunks: dict[int, Any] = {}
        hooks.hook(modules.mooncake.FastQueue, "get", after=self._got)

    def _got(self, _: None, chunk: Any, __: Any) -> None:
        self._chunks[threading.get_ident()] = chunk

    def here(self) -> Any:
        """The chunk of this thread."""
        return self._chunks[threading.get_ident()]


class Mooncake:
    """Emits the transfers of one server."""

    def __init__(self, attached: Attached, chunks: Chunks) -> None:
        """Install the hooks."""
        self._attached, self._chunks = attached, chunks
        self._holders: dict[int, str] = {}
        """Room -> the holder of its pages on prefill while they are sent."""
        self._slots: dict[int, str] = {}
        """Slot for metadata -> its holder."""
        self._filling = ""
        """The holder that takes the next slot."""
        self._said: dict[str, int] = {}
        """Message -> how often it was sent."""
        self._written: dict[str, list[Use]] = {}
        """Unfinished transfer -> the pages that it writes."""
        self._rooms: dict[str, int] = {}
        """Unfinished transfer -> its room."""
        self._posted = self._copied = 0
        self._install()

    def _install(self) -> None:
        hooks, modules = self._attached.hooks, self._attached.release.pair
        common, mooncake, queues = modules.common, modules.mooncake.MooncakeKVManager, modules.utils
        hook = hooks.hook
        # The pages
        hook(modules.decode.DecodePreallocQueue, "_pre_alloc", after=lambda _, __, ___, *given: self._reserved(*given))
        restored = "_commit_hicache_local_restore_to_req"
        hook(modules.decode.DecodeTransferQueue, restored, after=lambda _, __, ___, one: self._restored(one.req))
        hook(modules.prefill.SchedulerDisaggregationPrefillMixin, "_send_kv_chunk", before=self._sends)
        hook(mooncake, "_transfer_data", before=self._begins, after=self._ends)
        requests = self._attached.release.batches.Req
        hook(requests, "offload_kv_cache", after=lambda _, __, req, *___: self._attached.saved(req))
        hook(requests, "load_kv_cache", after=lambda _, __, req, *___: self._attached.saved(req, back=True))
        # The metadata
        hook(queues.ReqToMetadataIdxAllocator, "alloc", after=lambda _, slot, __: self._slot_taken(slot))
        hook(queues.ReqToMetadataIdxAllocator, "free", before=lambda _, slot: self._slot_freed(slot))
        hook(modules.prefill.PrefillBootstrapQueue, "ensure_metadata_buffer", before=lambda _, req: self._fills(req))
        hook(
            modules.decode.DecodePreallocQueue,
            "_send_kv_metadata",
            before=lambda _, one, *__, **___: self._fills(one.req),
        )
        hook(queues.MetadataBuffers, "set_buf", before=lambda _, req: self._wrote(req.metadata_buffer_index))
        hook(queues.MetadataBuffers, "clear_slot", before=lambda _, slot: self._wrote(slot, "cleared"))
        hook(modules.decode.DecodeTransferQueue, "_commit_transfer_to_req", before=lambda _, one: self._read(one))
        # The messages
        hook(
            mooncake,
            "build_receiver_metadata_message",
            after=lambda _, __, ___, **said: self._send(f"fill {said['bootstrap_room']}"),
        )
        hook(modules.mooncake.TransferInfo, "from_zmq", after=lambda _, said, *__: self._receive(f"fill {said.room}"))
        hook(
            common.CommonKVManager,
            "send_kv_status_message",
            before=lambda _, **said: self._send(f"status {said['bootstrap_room']} {said['status']}"),
        )
        hook(
            common.CommonKVManager,
            "apply_prefill_status",
            before=lambda _, **said: self._receive(f"status {said['bootstrap_room']} {said['status']}"),
        )
        hook(common.AbortNotification, "to_zmq", before=lambda said: self._send(_abort("abort", said)))
        hook(
            common.AbortNotification,
            "from_zmq",
            after=lambda _, said, *__: None if said is None else self._receive(_abort("abort", said)),
        )
        hook(common.AbortAck, "to_zmq", before=lambda said: self._send(_abort("abort ack", said)))
        hook(
            common.AbortAck,
            "from_zmq",
            after=lambda _, said, *__: None if said is None else self._receive(_abort("abort ack", said)),
        )

    # Messages

    def _send(self, message: str) -> None:
        """The engine acts only on the first of several messages, so further ones get other names."""
        times = self._said[message] = self._said.pop(message, 0) + 1
        if len(self._said) > REMEMBERED:
            del self._said[next(iter(self._said))]
        self._attached.hooks.emit(Send(message if times == 1 else f"{message}, {times}"))

    def _receive(self, message: str) -> None:
        self._attached.hooks.emit(Receive(message))

    # Pages

    def _reserved(self, req: Any, _: Any = None, found: int | None = None, promised: int | None = None) -> None:
        """Decode has pages for a request before any of it is computed.

        Prefill computes it from position `promised` on. The positions from `found` to there have no pages yet: decode
        loads them from its host tier.
        """
        stop = req.kv.kv_committed_len
        stay = self._attached.reserved(req, stop if promised == found else found or 0)
        if stay is not None:
            self._part(stay, req, stop)
            if self._alone(req):
                self._host([], [Use(table=stay.name, start=promised or 0, stop=stop)], "no transfer")

    def _alone(self, req: Any) -> bool:
        """Whether this is a check of one server by itself: it takes whatever its memory contains for transferred."""
        return bool(req.bootstrap_host == self._attached.release.pair.utils.FAKE_BOOTSTRAP_HOST)

    def _restored(self, req: Any) -> None:
        """The row of a request has the pages that decode has loaded for it."""
        self._attached.reserved(req, req.kv.kv_committed_len)

    def _part(self, stay: Stay, req: Any, stop: int) -> None:
        """Both servers give the last, partial page of a prompt the same name."""
        if stop % self._attached.page_size:
            tokens = [*req.origin_input_ids, *req.output_ids]
            self._attached.hooks.later(partial(self._parted, stay, tokens, stop))

    def _parted(self, stay: Stay, tokens: list[int], stop: int) -> None:
        page, further = divmod(stop, self._attached.page_size)
        before = stay.labels(tokens, page - 1, page)[0] if page else stay.whose
        (label,) = stay.labels(tokens, page, page + 1)
        self._attached.hooks.emit(Unify(label, chained(before, (PART, *tokens[stop - further : stop])), further))

    def _sends(self, _: Any, req: Any, last_chunk: bool = False, end_idx: int | None = None) -> None:
        """Prefill is about to send the computed part of a request."""
        stay = self._attached.stay(req)
        if stay is None:
            return
        self._holders[req.bootstrap_room] = stay.name
        if last_chunk:
            self._part(stay, req, len(req.origin_input_ids))

    def _begins(self, manager: Any, session: str, blocks: list[tuple[int, int, int]]) -> str | None:
        """The library is called. Blocks of further layers are at the same places as those of the first."""
        if not blocks:
            return None
        self._posted += 1
        name = f"write {self._posted}"
        mine, theirs = manager.kv_args, manager.decode_kv_args_table[session]
        chunk = self._chunks.here()
        pages = _pairs(blocks, mine.kv_data_ptrs, mine.kv_data_lens, mine.kv_item_lens, theirs.dst_kv_ptrs)
        holder, peer = self._holders.get(chunk.room), self.peer(session)
        copies = list[tuple[Use, Use]]()
        for ours, there in pages:
            stop = 0 if (ours, there) != pages[-1] else self._last_slots(chunk, len(pages))
            copies.append((self._use(KV, ours, stop, holder), self._use(f"{peer}/{KV}", there, stop)))
        slots = _pairs(blocks, mine.aux_data_ptrs, mine.aux_data_lens, mine.aux_item_lens, theirs.dst_aux_ptrs)
        copies += [
            (
                self._use(METADATA, ours, 0, _metadata(chunk.room)),
                self._use(f"{peer}/{METADATA}", there, 0, f"{peer}/{_metadata(chunk.room)}"),
            )
            for ours, there in slots
        ]
        self._written[name] = [
            Use(None, there.pool, [*there.pages], there.start, there.stop, holder=there.holder) for _, there in copies
        ]
        self._rooms[name] = chunk.room
        self._attached.hooks.emit(Begin(name, copies=copies, at="batch_transfer_sync"))
        return name

    def peer(self, session: str) -> str:
        """The host of the memory that a session of the library reaches."""
        return host("decode", session)

    def _use(self, pool: str, page: int, stop: int, holder: str | None = None) -> Use:
        return Use(None, pool, [page], 0, stop, holder=holder)

    def _last_slots(self, chunk: Any, pages: int) -> int:
        """The number of slots that count in the last page of a chunk; 0: all."""
        return int(chunk.num_kv_tokens) - (pages - 1) * self._attached.page_size

    def _ends(self, name: str | None, failed: int, *_: Any) -> None:
        if name is not None and not failed:
            self.over(name)

    def over(self, name: str, *, written: bool = True) -> None:
        """A transfer has ended. No engine learns this of a failed one."""
        uses = self._written.pop(name)
        self._attached.hooks.emit(End(name, unwritten=[] if written else uses))
        self.ended(self._rooms.pop(name), name)

    def ended(self, room: int, name: str) -> None:
        """A transfer of a room was found complete."""

    # Metadata

    def _fills(self, req: Any) -> None:
        self._filling = _metadata(req.rid if self._alone(req) else req.bootstrap_room)

    def _slot_taken(self, slot: int | None) -> None:
        if slot is not None:
            self._slots[slot] = self._filling
            self._attached.hooks.emit(Take(self._filling, METADATA, [slot]))

    def _slot_freed(self, slot: int) -> None:
        holder = self._slots.pop(slot, _metadata(0))
        self._attached.hooks.emit(Released(holder, METADATA, [slot]))
        self._attached.hooks.emit(EndHolder(holder))

    def _wrote(self, slot: int, label: str = "") -> None:
        holder = self._slots.get(slot, _metadata(0))
        written = Use(None, METADATA, [slot], 0, 1, [label or holder], holder=holder)
        self._host([], [written], "set_buf")

    def _read(self, one: Any) -> None:
        """Decode takes the metadata that prefill has sent for a request."""
        if self._alone(one.req):
            return
        room = _metadata(one.req.bootstrap_room)
        self._host([Use(None, METADATA, [one.metadata_buffer_index], 0, 1, [room], holder=room)], [], "get_buf")

    def _host(self, reads: list[Use], writes: list[Use], what: str) -> None:
        """Emit an operation of the host, which is complete at once."""
        self._copied += 1
        self._attached.hooks.emit(Begin(f"host {self._copied}", "host", reads, writes, at=what))


def _abort(kind: str, said: Any) -> str:
    return f"{kind} {said.room} {said.generation}"


def host(server: str, session: str) -> str:
    """The name of a prefill or decode server in traces; `session` is its address and port, as Mooncake has it."""
    return f"{server}-{session}"


def _metadata(room: int | str) -> str:
    """The holder of a room's slot for metadata, and the label of its content."""
    return f"metadata {room}"


def _pairs(
    blocks: list[tuple[int, int, int]], bases: list[int], lengths: list[int], sizes: list[int], theirs: list[int]
) -> list[tuple[int, int]]:
    """The local and remote pages of the blocks in the first of several regions."""
    pairs = list[tuple[int, int]]()
    for source, target, length in blocks:
        if bases[0] <= source < bases[0] + lengths[0]:
            ours, there = (source - bases[0]) // sizes[0], (target - theirs[0]) // sizes[0]
            pairs += [(ours + further, there + further) for further in range(length // sizes[0])]
    return pairs
