"""On a CPU: stand-ins for what SGLang and vLLM have for GPUs alone.

SGLang: the compiled functions that copy to its host cache and back, the convolutions of a model with states, the events
of a prefill server, drafts (`kvlab.serving.draft_kernels`), and reads of pages of windows, which its attention in plain
torch reads by the numbers of other pages. vLLM: streams, events, and the function of CUDA's driver that copies blocks
to the host and back.
"""

import ctypes
import importlib
import inspect
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from itertools import count
from types import SimpleNamespace
from typing import Any, ClassVar

from kvattach.live import After
from kvattach.patches import Patches
from kvlab.injection import Defect, inject_fault
from kvlab.serving.draft_kernels import COMPILED, read_trees

HOST_POOLS = {f"sglang.srt.mem_cache.{name}" for name in ("memory_pool_host", "pool_host.common", "pool_host.mha")}
"""The modules of the host cache, of which older releases have the first alone, or the first two."""
PREFILL = "sglang.srt.disaggregation.prefill"
TRANSFERS = "sglang.srt.disaggregation.mooncake.conn"
ATTENTION = "sglang.srt.layers.attention.torch_native_backend"
CONVOLUTIONS = "sglang.srt.models.lfm2"
SCHEDULER = "vllm.v1.core.sched.scheduler"
PLACEHOLDERS = "vllm.v1.worker.cpu.shm"
"""It sets streams and events that do nothing."""
COPIES = "vllm.v1.simple_kv_offload.cuda_mem_ops"
CHUNKS = "vllm.v1.kv_offload.cpu.spec"


def wait_for_sglang() -> None:
    """Complete these modules once this process has imported them, and the stub for SGLang's kernels at once."""
    for name, functions in COMPILED.items():
        vars(importlib.import_module(name)).update(functions)
    sys.meta_path.insert(0, After({*HOST_POOLS, PREFILL, TRANSFERS, ATTENTION, CONVOLUTIONS}, _complete))


def _complete(name: str) -> None:
    if name == PREFILL:
        torch = importlib.import_module("torch")
        torch.cuda.Event = torch.cpu.Event
        return
    if name == TRANSFERS:
        # Only a GPU copies indices later than the call that asks for it.
        importlib.import_module(name).MooncakeKVSender.supports_host_tensor_indices = False
        return
    if name == ATTENTION:
        _read_windows(importlib.import_module(name).TorchNativeAttnBackend)
        read_trees(importlib.import_module(name))
        return
    if name == CONVOLUTIONS:
        vars(importlib.import_module(name)).update(
            causal_conv1d_fn=_convolve, causal_conv1d_update=_convolve_next, kvspec_operators=_operators()
        )
        return
    vars(importlib.import_module(name)).update(
        transfer_kv_direct=_copy, _cuda_host_register=_nothing, _cuda_host_unregister=_nothing
    )


def _read_windows(attention: Any) -> None:
    """Let attention in plain torch read what it has written for layers with windows, as attention on a GPU does."""
    read = "self.req_to_token_pool.req_to_token,"
    if f"forward_batch{read[4:]}" in inspect.getsource(attention.forward_decode):
        return  # in 0.5.12, in which no server with windows is followed
    attention.kvspec_rows = _rows
    places = tuple((attention, name, read, "self.kvspec_rows(layer),") for name in ("forward_extend", "forward_decode"))
    inject_fault(Defect("a CPU", "", places), Patches())


def _operators() -> Any:
    """The operators that modules of recurrent states look up when they are imported; none is called."""
    library: Any = importlib.import_module("torch").library.Library("sgl_kernel", "FRAGMENT")
    for name in ("fused_gdn_gating_cpu", "fused_sigmoid_gating_delta_rule_update_cpu"):
        library.define(f"{name}(Tensor state) -> Tensor")
    return library


def _convolve(
    x: Any,
    weight: Any,
    bias: Any,
    *,
    query_start_loc: Any,
    cache_indices: Any,
    has_initial_state: Any,
    conv_states: Any,
    **_: Any,
) -> Any:
    """Convolve the tokens of several requests, one after the other in `x`; each goes on from a state it has."""
    torch = importlib.import_module("torch")
    outputs, starts = [], query_start_loc.tolist()
    for start, stop, slot, goes_on in zip(
        starts, starts[1:], cache_indices.tolist(), has_initial_state.tolist(), strict=False
    ):
        before = conv_states[slot] if goes_on else torch.zeros_like(conv_states[slot])
        tokens = torch.cat([before, x[:, start:stop]], dim=1)
        outputs.append(torch.nn.functional.conv1d(tokens[None], weight[:, None], bias, groups=len(weight))[0])
        conv_states[slot] = tokens[:, -conv_states.shape[-1] :]
    return torch.cat(outputs, dim=1)


def _convolve_next(x: Any, conv_states: Any, weight: Any, bias: Any, *, conv_state_indices: Any, **_: Any) -> Any:
    """Convolve the next token of each request, from its state on."""
    torch = importlib.import_module("torch")
    slots = conv_state_indices.long()
    tokens = torch.cat([conv_states[slots], x[:, :, None]], dim=2)
    conv_states[slots] = tokens[:, :, 1:]
    return (tokens * weight).sum(dim=2) + (0 if bias is None else bias)


def _rows(attention: Any, layer: Any) -> Any:
    """The slots of each row in the pool of a layer."""
    rows, pool = attention.req_to_token_pool.req_to_token, attention.token_to_kv_pool
    if not attention.use_sliding_window_kv_pool or not pool.layers_mapping[layer.layer_id][1]:
        return rows
    return pool.translate_loc_from_full_to_swa(rows.long())


def _copy(
    *, src_layers: Sequence[Any], dst_layers: Sequence[Any], src_indices: Any, dst_indices: Any, **_: Any
) -> None:
    """Copy slots of each layer; `page_size` only means that they are whole pages."""
    for source, target in zip(src_layers, dst_layers, strict=True):
        target[dst_indices] = source[src_indices]


def _nothing(*_: Any, **__: Any) -> None:
    """Memory needs no registration."""


class Stream:
    """Stands in for `torch.cuda.Stream`: what a thread queues is complete when its call returns."""

    current: ClassVar["Stream"]
    _numbers: ClassVar = count()

    def __init__(self, **_: Any) -> None:
        """A stream with a number of its own."""
        self.cuda_stream: int | str = next(Stream._numbers)

    @staticmethod
    def priority_range() -> tuple[int, int]:
        """The lowest and the highest priority."""
        return 0, 0

    @contextmanager
    def entered(self) -> Iterator[None]:
        """Make it the current one, for a while."""
        before, Stream.current = Stream.current, self
        try:
            yield
        finally:
            Stream.current = before

    def wait_event(self, event: "Event") -> None:
        """Do nothing: the event has happened."""

    def wait_stream(self, stream: "Stream") -> None:
        """Do nothing: the stream is empty."""

    def synchronize(self) -> None:
        """Do nothing: the stream is empty."""


class Event:
    """Stands in for `torch.Event`: it has happened when it is recorded."""

    def __init__(self, *_: Any, **__: Any) -> None:
        """An event that was never recorded has happened."""

    def record(self, stream: Stream | None = None) -> None:
        """Do nothing: everything in the stream is complete."""

    def wait(self, stream: Stream | None = None) -> None:
        """Do nothing: it has happened."""

    def synchronize(self) -> None:
        """Do nothing: it has happened."""

    def query(self) -> bool:
        """It has happened."""
        return True

    def elapsed_time(self, other: "Event") -> float:
        """No time has passed between two events."""
        return 0.0


def wait_for_vllm() -> None:
    """Stand in for the device, from the import of vLLM's scheduler on."""
    Stream.current = Stream()
    sys.meta_path.insert(0, After({SCHEDULER, PLACEHOLDERS, COPIES, CHUNKS}, _stand_in))


def _stand_in(name: str) -> None:
    if name == COPIES:
        vars(importlib.import_module(name)).update(_resolve_batch_memcpy=lambda: (_copy_blocks, 0))
        return
    if name == CHUNKS:
        _take_memory_for_a_devices(importlib.import_module(name))
        return
    torch: Any = importlib.import_module("torch")
    torch.Event, torch.cuda.Stream = Event, Stream
    torch.cuda.current_stream = lambda: Stream.current


def _take_memory_for_a_devices(spec: Any) -> None:
    """Let `kv_offload` offload from a CPU. Its pool on the host is ordinary memory, as on ROCm."""
    handlers: Any = importlib.import_module("vllm.v1.kv_offload.cpu.gpu_worker")
    spec.current_platform = SimpleNamespace(is_cuda_alike=lambda: True, is_rocm=lambda: True, is_xpu=lambda: False)
    handlers.current_platform = SimpleNamespace(
        Stream=Stream,
        stream=Stream.entered,
        current_stream=lambda: Stream.current,
        is_rocm=lambda: True,
        is_xpu=lambda: False,
    )
    handlers.ops = SimpleNamespace(swap_blocks_batch=_swap_blocks)
    handler = handlers.SingleDirectionOffloadingHandler
    asserted = "assert gpu_tensor.is_cuda or gpu_tensor.is_xpu"
    inject_fault(Defect("a CPU", "", ((handler, "__init__", asserted, "pass"),)), Patches())


def _swap_blocks(sources: Any, targets: Any, sizes: Any, *_: Any, **__: Any) -> None:
    """Copy blocks of bytes; the arguments are tensors of addresses and of numbers of bytes."""
    for source, target, size in zip(sources.tolist(), targets.tolist(), sizes.tolist(), strict=True):
        ctypes.memmove(target, source, size)


def _copy_blocks(targets: int, sources: int, sizes: int, number: int, *_: Any) -> int:
    """Copy blocks of bytes; the arguments are the addresses of arrays of `number` addresses and sizes."""
    array = ctypes.c_uint64 * number
    for place in zip(*(array.from_address(address) for address in (targets, sources, sizes)), strict=True):
        ctypes.memmove(*place)
    return 0
