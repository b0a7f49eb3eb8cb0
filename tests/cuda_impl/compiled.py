"""Compiles every kernel for an H100 and prints its registers: `TRITON_INTERPRET=0 python -m tests.cuda_impl.compiled`.

Triton brings its own assembler, so this needs no GPU. A line for each variant: kernel, variant, registers of a thread,
and the bytes of local memory that a thread spills to.
"""

import re
import subprocess
import tempfile
from pathlib import Path
from typing import Any

from kvcuda import digest_kernels, kernels
from kvcuda.canary import canary
from kvcuda.canary import kernels as canary_kernels
from kvcuda.jit import Kernel

# kvcuda decides how kernels are decorated, so it comes before triton.
import triton  # isort: skip
from triton.backends.compiler import GPUTarget  # isort: skip
from triton.compiler import ASTSource  # isort: skip

SIZES = ("num_pages", "num_window_pages", "max_context_len")
POINTERS = {**dict.fromkeys(("fault", "kv", "window_kv", "recurrent"), "*i64"), **dict.fromkeys(SIZES, "i32")}
NO_WINDOW: dict[str, Any] = dict.fromkeys(("window_of", "window_ring", "window_used"))
LAYERS: dict[str, dict[str, Any]] = {
    "plain": {"window_loc": None, "window_kv": None, "recurrent": None, "WINDOW": 0, "RECENT": 1},
    "window": {"recurrent": None, "WINDOW": 100, "RECENT": 128},
    "states": {"window_loc": None, "window_kv": None, "WINDOW": 0, "RECENT": 1},
}
COLUMNS = "words statics spans labels writers sealed heads ring count positions sources targets"
CANARY = {name: "*i64" for column in COLUMNS.split() for name in (column, f"all_{column}")}
CANARY |= dict.fromkeys(["capacity", "num_rows", "from_base", "from_slots", "to_base", "to_slots", "num"], "i32")
RESOURCES = re.compile(r"REG:(\d+) STACK:(\d+) .*LOCAL:(\d+)")
TOOLS = Path(triton.__file__).parent / "backends" / "nvidia" / "bin"


def compile(kernel: Kernel[...], variant: str, types: dict[str, str], **constants: Any) -> None:
    """Compile one variant for sm_90 and print its resources."""
    function: Any = kernel.compiled
    names = function.arg_names
    signature = {name: "constexpr" if name in constants else types.get(name, "*i32") for name in names}
    fixed = {(names.index(name),): value for name, value in constants.items()}
    source = ASTSource(function, signature, fixed)
    compiled = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": kernel.num_warps})
    with tempfile.NamedTemporaryFile(suffix=".cubin") as file:
        file.write(compiled.asm["cubin"])
        file.flush()
        command = [str(TOOLS / "cuobjdump"), "--dump-resource-usage", file.name]
        reported = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    registers, stack, local = map(int, RESOURCES.findall(reported)[0])
    print(function.__name__, variant, registers, stack + local, sep=" | ", flush=True)


def main() -> None:
    """Compile all."""
    for P, debug in ((1, False), (16, False), (48, True)):
        for window in (NO_WINDOW, {}):
            variant = f"P={P}{', debug' if debug else ''}{'' if window else ', window'}"
            compile(kernels.extend_kernel, variant, POINTERS, P=P, BLOCK=1024, DEBUG=debug, **window)
            compile(kernels.decode_kernel, variant, POINTERS, P=P, JOB_BLOCK=256, DEBUG=debug, **window)
            compile(kernels.move_kernel, variant, POINTERS, P=P, BLOCK=512, DEBUG=debug, **window)
    for name, layers in LAYERS.items():
        compile(digest_kernels.prefill_kernel, f"digest, {name}", POINTERS, BLOCK=512, **layers)
        compile(digest_kernels.decode_kernel, f"digest, {name}", POINTERS, BLOCK=512, **layers)
    compile(digest_kernels.look_up_kernel, "digest, P=16", POINTERS, P=16, WINDOW=100, BLOCK=512)
    compile(kernels.empty_kernel, "empty", POINTERS)
    for pools, wide, real in ((1, True, False), (3, False, True)):
        variant = f"canary, pools={pools}{', bytes' if real else ''}"
        fixed: dict[str, Any] = {"POOLS": pools, "BLOCK": canary.BLOCK, "NEW_WIDE": wide}
        compile(canary_kernels.watch_kernel, variant, CANARY, BYTES=real, **fixed)
        compile(canary_kernels.seal_kernel, variant, CANARY, **fixed)
    compile(canary_kernels.copy_kernel, "canary, copy", CANARY, BLOCK=canary.BLOCK)


if __name__ == "__main__":
    main()
