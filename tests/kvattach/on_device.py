"""Drives vLLM's own offloading with the plugin's hooks on the device of `cpp_device`, whose events are C++ objects.

The arguments: the library, the release, `hooked`, `bare` or `elsewhere` (hooked, as if the worker were another
process), the connector's workloads (`simple` or `chunks`), their number, and an injected defect or nothing.
"""

import json
import logging
import sys
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path

import torch

import kvlab.device
from kvlab.drives import CheckedTrace
from kvspec.memory import Pool
from tests.kvattach.cpp_device import Stream, load

FIRST = 300
"""The seed of the first workload."""


class Trace(CheckedTrace):
    """A checked trace that also keeps the pools."""

    def __init__(self) -> None:
        super().__init__()
        self.pools: set[str] = set()

    def header(self, producer: str, pools: Mapping[str, Pool], host: str | None = None) -> None:
        """Another memory, all of it free."""
        self.pools |= {*pools}
        super().header(producer, pools, host)


def main(library: str, release: str, hooked: str, connector: str, runs: str, defect: str) -> None:
    """Print what was emitted and found, and how often the host has waited for the device."""
    logging.getLogger("vllm").disabled = True
    device = load(library)
    # The driver and the plugin take these from there.
    kvlab.device.Stream, kvlab.device.Event = Stream, torch.Event  # type: ignore[misc,assignment]
    torch.cuda.Stream = Stream  # type: ignore[misc,assignment]
    from kvattach.patches import Patches
    from kvattach.vllm import kinds, plugin
    from kvlab.injection import inject_fault
    from kvlab.vllm import kv_offloading
    from kvlab.vllm.driver import EngineGaveUp, driven
    from kvlab.vllm.engine import fitting
    from kvlab.vllm.faults_chunks import chunk_defects
    from kvlab.vllm.faults_offload import offloading_defects
    from kvlab.vllm.issues import fix
    from kvlab.vllm.offloading import prepared
    from kvlab.vllm.workload import chunks_workload, offloading_workload

    assert not (prepared(Path(release)) or kv_offloading.prepared())
    workload = {"simple": offloading_workload, "chunks": chunks_workload}[connector]
    patches = Patches()
    fix(patches)
    for one in [*offloading_defects(), *chunk_defects()]:
        if one.name == defect:
            inject_fault(one, patches)
    trace = Trace()
    if hooked == "elsewhere":
        patches.set(kinds, "in_this_process", lambda _: False)
    if hooked != "bare":
        plugin.attach(trace)
    for seed in range(FIRST, FIRST + int(runs)):
        with suppress(*([EngineGaveUp] if defect else [])):
            driven(fitting(workload(seed, known=False), known=False), trace.find)
    said = {
        "events": trace.events,
        "pools": sorted(trace.pools),
        "rules": sorted({finding.rule for _, finding in trace.found}),
        "host_waits": device.device_host_waits(),
    }
    print(json.dumps(said))


if __name__ == "__main__":
    main(*sys.argv[1:])
