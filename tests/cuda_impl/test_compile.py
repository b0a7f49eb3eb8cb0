"""The kernels compile for an H100. Triton brings its own assembler, so this needs no GPU."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

COMPILE = """
import sys
from kvcuda import digest_kernels, kernels
from kvcuda.canary import canary, kernels as canary_kernels
import triton
from triton.backends.compiler import GPUTarget
from triton.compiler import ASTSource

SIZES = ("num_pages", "num_window_pages", "max_context_len")
WIDE = {**dict.fromkeys(("fault", "kv", "window_kv", "recurrent"), "*i64"), **dict.fromkeys(SIZES, "i32")}
NO_WINDOW = dict.fromkeys(("window_of", "window_ring", "window_used"))
NO_LAYER = {"window_loc": None, "window_kv": None, "recurrent": None, "WINDOW": 0, "RECENT": 1}
WINDOWED = {"recurrent": None, "WINDOW": 100, "RECENT": 128}
RECURRENT = {"window_loc": None, "window_kv": None, "WINDOW": 0, "RECENT": 1}

def compile(kernel, **constants):
    names = kernel.arg_names
    signature = {name: "constexpr" if name in constants else WIDE.get(name, "*i32") for name in names}
    fixed = {(names.index(name),): value for name, value in constants.items()}
    compiled = triton.compile(ASTSource(kernel, signature, fixed), target=GPUTarget("cuda", 90, 32))
    print(kernel.__name__, len(compiled.asm["cubin"]))

for P, debug in ((1, False), (48, True)):
    for window in (NO_WINDOW, {}):
        compile(kernels.extend_kernel, P=P, JOB_BLOCK=256, BLOCK=1024, DEBUG=debug, **window)
        compile(kernels.decode_kernel, P=P, JOB_BLOCK=256, DEBUG=debug, **window)
        compile(kernels.move_kernel, P=P, BLOCK=512, DEBUG=debug, **window)
compile(kernels.empty_kernel)
for layers in (NO_LAYER, WINDOWED, RECURRENT):
    compile(digest_kernels.prefill_kernel, BLOCK=512, **layers)
    compile(digest_kernels.decode_kernel, BLOCK=512, **layers)
compile(digest_kernels.look_up_kernel, P=16, WINDOW=100, BLOCK=512)

COLUMNS = "words statics spans labels writers sealed heads ring count positions sources targets"
WIDE = {name: "*i64" for column in COLUMNS.split() for name in (column, f"all_{column}")}
WIDE |= dict.fromkeys("capacity num_rows from_base from_slots to_base to_slots num".split(), "i32")
for pools, wide, real in ((1, True, False), (3, False, True)):
    compile(canary_kernels.watch_kernel, POOLS=pools, BLOCK=canary.BLOCK, NEW_WIDE=wide, BYTES=real)
    compile(canary_kernels.seal_kernel, POOLS=pools, BLOCK=canary.BLOCK, NEW_WIDE=wide)
compile(canary_kernels.copy_kernel, BLOCK=canary.BLOCK)
"""


@pytest.mark.slow
def test_kernels_compile(tmp_path: Path) -> None:
    environment = {**os.environ, "TRITON_INTERPRET": "0", "TRITON_CACHE_DIR": str(tmp_path)}
    done = subprocess.run([sys.executable, "-c", COMPILE], env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert len(done.stdout.splitlines()) == 25
