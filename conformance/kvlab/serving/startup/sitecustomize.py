"""Python imports this in every process of a server that `kvspec serve` starts.

Stubs replace packages with compiled GPU kernels; `KVSPEC_STUBS` names them. `KVSPEC_FAULT` names a defect to inject
into the engine, `KVSPEC_FIXED` the engine whose known issues are fixed, and `KVSPEC_ARRAYS` sets where arrays begin.
Hooks are also installed in engines that load no plugins.
"""

import os
import sys
from pathlib import Path

from kvattach import plugins
from kvlab.stubs import Finder

_names = [name for name in os.environ.get("KVSPEC_STUBS", "").split(",") if name]
if _names:
    sys.meta_path.insert(0, Finder(_names, [], Path()))

if "sgl_kernel" in _names:
    from kvlab.serving.kernels import wait_for_sglang

    wait_for_sglang()

if "cuda" in _names:
    from kvlab.serving.kernels import wait_for_vllm

    wait_for_vllm()

if os.environ.get("KVSPEC_FIXED"):
    from kvlab.serving.faults import wait_to_fix

    wait_to_fix(os.environ["KVSPEC_FIXED"])

if os.environ.get("KVSPEC_FAULT"):
    from kvlab.serving.faults import wait_for_engine

    wait_for_engine(os.environ["KVSPEC_FAULT"])

if os.environ.get("KVSPEC_ARRAYS"):
    from kvlab.serving.arrays import begin_arrays

    begin_arrays(int(os.environ["KVSPEC_ARRAYS"]))

plugins.process()
