"""`kvspec attach` hooks mini-sglang when its scheduler is imported, here without a GPU and without a model."""

import importlib
import re
import subprocess
import sys
import threading
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kvattach import standstill
from kvattach.hooks import Hooks
from kvattach.live import After
from kvattach.mini_sglang import live
from kvattach.mini_sglang.modules import Engine, imported
from kvattach.patches import Patches
from kvlab.device import stood_in
from kvlab.injection import chosen, inject_fault
from kvlab.mini_sglang import driver
from kvlab.mini_sglang.engine import load
from kvlab.mini_sglang.faults import defects
from kvlab.mini_sglang.fixes import fix
from kvlab.stubs import EngineError
from tests.kvattach.lagging import Events
from tests.kvlab.checkout import checkout_of

SCHEDULER = "minisgl.scheduler.scheduler"


def kvspec(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "kvcli", *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=360)


def recorded(folder: Path, kind: str, fault: str = "") -> tuple[str, str]:
    """The recording of such an engine, and the report of `kvspec check` on it. With a fault the engine may fail."""
    try:
        checkout = checkout_of("mini-sglang")
    except EngineError as error:
        pytest.skip(str(error))
    engine = [sys.executable, "-m", "tests.kvlab.test_mini_sglang_live", str(checkout), kind, fault]
    done = kvspec("attach", "--record", str(folder / "trace.jsonl"), "--", *engine)
    assert f"kvspec: hooked {SCHEDULER} in process" in done.stderr
    assert fault or not done.returncode, done.stderr
    (trace,) = folder.iterdir()
    return trace.read_text(), kvspec("check", str(trace)).stdout


@pytest.mark.slow
@pytest.mark.parametrize("kind", ["overlap", "no overlap", "offline", "offline, no prefixes"])
def test_a_recording_conforms(kind: str, tmp_path: Path) -> None:
    trace, report = recorded(tmp_path, kind)
    (events,) = re.findall(r" conforms, ([\d,]+) events checked", report)
    assert int(events.replace(",", "")) > 1500
    results = trace.count('"at":"forward_batch"')
    assert trace.count('"op":"count"') == results // live.COUNT_EVERY > 0
    assert 1 < trace.count('"op":"idle"') < results // 10
    ended = re.findall(r'"op":"end_holder","holder":"(\S+?)"', trace)
    assert len({*ended}) == len(ended) > 20, "each request has a name of its own"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("kind", "fault", "rule"),
    [
        ("overlap", "tail not freed", "MEM-LEAK"),
        ("overlap", "launch without its fence", "MEM-RACE"),
        ("no overlap", "left in the free list", "MEM-TAKE"),
        ("offline", "lock not taken", "MEM-USE"),
    ],
)
def test_an_injected_fault_is_found(kind: str, fault: str, rule: str, tmp_path: Path) -> None:
    _, report = recorded(tmp_path, kind, fault)
    assert "does not conform" in report and f"{rule} is broken" in report


@pytest.mark.slow
def test_requests_that_wait_in_vain_are_a_finding(tmp_path: Path) -> None:
    _, report = recorded(tmp_path, "impatient", "tail not freed")
    assert re.search(r"nothing\s+has\s+been\s+launched\s+for\s+0\s+s:\s+\d+\s+requests?\s+waits?", report), report


@pytest.mark.parametrize("device", ["cpu", "cuda"])
def test_hooks_on_a_gpu_have_a_tape(device: str) -> None:
    events = Events()
    hooks, resolved = Hooks(events), threading.Event()
    stream: Any = SimpleNamespace(record=lambda _: None, query=lambda: True)
    torch = SimpleNamespace(cuda=SimpleNamespace(current_stream=lambda: stream), Event=lambda on: stream)
    engine: Any = SimpleNamespace(torch=torch)
    live._begins(hooks, engine, None, None, SimpleNamespace(device=SimpleNamespace(type=device)))
    assert (hooks.tape is not None) == (device == "cuda")
    hooks.later(resolved.set)
    assert resolved.wait(60)


def test_a_scheduler_says_which_request_waits_and_how_much_is_free() -> None:
    scheduler: Any = SimpleNamespace(
        prefill_manager=SimpleNamespace(pending_list=[SimpleNamespace(uid=7, input_len=30)]),
        table_manager=SimpleNamespace(available_size=1, page_table=[None] * 5),
        cache_manager=SimpleNamespace(
            free_slots=[0, 4],
            page_size=4,
            num_pages=16,
            prefix_cache=SimpleNamespace(size_info=SimpleNamespace(evictable_size=12)),
        ),
    )
    assert live.who_waits(scheduler) == (
        "1 request waits, it is r7 with 30 tokens; 1 of 4 rows are free, 8 of 64 tokens, and 12 can be evicted"
    )
    scheduler.prefill_manager.pending_list = []
    assert live.who_waits(scheduler) == ""


def serve(engine: Engine, *, overlap: bool) -> None:
    """Let a scheduler run on random requests."""
    shape = driver.Shape(page_size=4, pages=24, rows=4, budget=32, alphabet=3, overlap=overlap, aborts=0.1)
    driver.run(engine, 0, requests=40, shape=shape)


def hurry(engine: Engine) -> None:
    """Let a scheduler run whose requests may not wait in vain for two turns."""
    with Patches() as patches:
        patches.set(standstill, "PATIENCE", 0.0)
        serve(engine, overlap=False)


def generate(engine: Engine, cache: str) -> None:
    """Let a scheduler without a server run twice: the requests of the second call have the numbers of the first."""
    tokens: Any = SimpleNamespace(consume=lambda *_: None, sample=lambda name, position: 1 + position % 7)
    with driver.without_gpu(engine, 0, tokens):
        llm = importlib.import_module("minisgl.llm").LLM(
            "", engine.torch.float32, max_running_req=4, page_size=4, num_page_override=40, cache_type=cache,
            max_extend_tokens=16,
        )  # fmt: skip
        llm.tokenizer = SimpleNamespace(decode=lambda _: "")
        for call in range(2):
            prompts = [[1 + (at * at + number % 3 + call) % 5 for at in range(9 + 4 * number)] for number in range(12)]
            llm.generate(prompts, engine.core.SamplingParams(max_tokens=14))


KINDS: dict[str, Callable[[Engine], None]] = {
    "overlap": partial(serve, overlap=True),
    "no overlap": partial(serve, overlap=False),
    "impatient": hurry,
    "offline": partial(generate, cache="radix"),
    "offline, no prefixes": partial(generate, cache="naive"),
}


def main(place: str, kind: str, fault: str) -> None:
    """Run an engine whose known issues are fixed, and into which a fault may be injected, before it is hooked."""
    patches = Patches()

    def changed(_: str) -> None:
        engine = imported()
        for defect in chosen(defects(engine), fault) if fault else []:
            inject_fault(defect, patches)
        fix(engine, patches)

    # After the finder of `kvspec attach`, whose hooks come last.
    sys.meta_path.insert(1, After({SCHEDULER}, changed))
    with stood_in(importlib.import_module("torch")):
        engine = load(Path(place))
    KINDS[kind](engine)


if __name__ == "__main__":
    main(*sys.argv[1:])
