"""The traffic for real servers, with a server that answers as SGLang does: each token is the one before it plus 1."""

import json
import logging
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from typer.testing import CliRunner

from kvattach.hooks import Hooks
from kvattach.live import After
from kvcli.main import app, run_command
from kvlab.model import Difference
from kvlab.serving import client, kernels, report
from kvlab.serving.client import Clients
from kvlab.serving.environment import NoEnvironment, environment
from kvlab.serving.faults import wait_for_engine
from kvlab.serving.servers import (
    DRAFTERS,
    LAZY,
    NGRAM,
    SERVERS,
    Server,
    halves,
    on_gpu,
    sglang,
    vllm,
    with_drafts,
    with_host_cache,
    with_states,
    with_windows,
)
from kvlab.serving.session import HIGHEST, Run, _free_port, _metrics, running, trace_ended
from kvspec.memory import Pool
from kvspec.memory.events import Begin, Map, Take, Use
from kvtrace.writer import TraceWriter

FOUND = Path(__file__).parents[2] / "conformance" / "found"
SEED = next(seed for seed in range(50) if sglang(seed).sessions)


class _Handler(BaseHTTPRequestHandler):
    """Sessions, streams, and orders; `silent` requests are never answered."""

    sessions: dict[str, list[int]]
    prompts: dict[str, list[int]]
    """Request -> its tokens, after those of its session."""
    aborted: set[str]
    stuck: set[str] | None = None
    """The sessions whose next turn is refused, as before SGLang 0.5.22 after an abort; `None`: it is answered."""
    silent = False
    held: dict[int, list[int]]
    """Number of a prompt that was computed -> its tokens, until its KV is asked for."""
    meetings: dict[int, threading.Barrier]
    """Room of an SGLang pair -> where its two requests meet."""
    decode_ends: bool
    """Whether decode ends each request at once, and prefill never answers."""

    def do_POST(self) -> None:
        body: dict[str, Any] = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.send_response(200)
        self.end_headers()
        if self.path == "/open_session":
            self.sessions[body["session_id"]] = []
        if self.path == "/v1/completions":
            self._complete(body)
        if self.path == "/abort_request":
            self.aborted.add(body["rid"])
        if self.path != "/generate":
            return
        if "bootstrap_room" in body:
            self.meetings.setdefault(body["bootstrap_room"], threading.Barrier(2)).wait(5)
            if self.decode_ends:
                if not body["stream"]:
                    self.rfile.read(1)  # until the client disconnects
                return
        if self.silent:
            self.rfile.read(1)
            return
        session = body.get("session_params", {}).get("id")
        if self.stuck is not None and session in self.stuck:
            self.stuck.remove(session)
            refused = {"output_ids": [0], "meta_info": {"finish_reason": {"type": "abort", "status_code": 400}}}
            self.wfile.write(b"data: " + json.dumps(refused).encode() + b"\n\n")
            return
        tokens = self.sessions.get(session, []) + body["input_ids"]
        output: list[int] = []
        asked = body["sampling_params"]["max_new_tokens"]
        self.prompts[body["rid"]] = tokens
        for _ in range(asked):
            time.sleep(0.001 if session else 0.0)
            ended = "abort" if body["rid"] in self.aborted else "length" if len(output) + 1 == asked else None
            output += [(([*tokens, *output])[-1] + 1) % 508] if ended != "abort" else []
            reason = {"type": ended} if ended else None
            verified = {"spec_num_proposed_drafts": 3, "spec_num_correct_drafts": 1}
            # SGLang answers to an abort in its queue with the last token alone.
            sent = output[-1:] if ended == "abort" else output
            message = {"output_ids": sent, "meta_info": {"finish_reason": reason, **verified}}
            try:
                self.wfile.write(b"data: " + json.dumps(message).encode() + b"\n\n")
            except OSError:
                return
            if ended == "abort":
                if self.stuck is not None and session:
                    self.stuck.add(session)
                return
        if session is not None:
            self.sessions[session] = tokens + output

    def _complete(self, body: dict[str, Any]) -> None:
        """As vLLM does it: prefill holds a prompt's KV, decode has to be given its number to answer."""
        given = body["kv_transfer_params"]
        if given.get("do_remote_decode"):
            assert body["max_tokens"] == 1 and not body["stream"]
            self.held[number := len(self.held)] = body["prompt"]
            self.wfile.write(json.dumps({"kv_transfer_params": {"number": number}}).encode())
            return
        token = self.held[given["number"]][-1]
        for left in reversed(range(body["max_tokens"])):
            token = (token + 1) % 508
            choice = {"token_ids": [token], "finish_reason": None if left else "length"}
            self.wfile.write(b"data: " + json.dumps({"choices": [choice]}).encode() + b"\n\n")

    def log_message(self, *_: object) -> None:
        pass


@contextmanager
def _server(
    *, silent: bool = False, decode_ends: bool = False, stuck: bool = False, prompts: dict[str, list[int]] | None = None
) -> Iterator[int]:
    asked = {} if prompts is None else prompts
    kept: dict[str, object] = {"sessions": {}, "prompts": asked, "aborted": set(), "held": {}, "meetings": {}}
    kept |= {"stuck": set()} if stuck else {}
    handler = type("Handler", (_Handler,), {**kept, "silent": silent, "decode_ends": decode_ends})
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        server.daemon_threads, server.block_on_close = True, False
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server.server_address[1]
        server.shutdown()


@pytest.mark.slow
def test_each_answer_is_kept_with_all_that_came_before_it() -> None:
    with _server() as port:
        traffic = Clients(sglang(SEED), port, SEED, clients=4).run(1.5)
    assert not traffic.failures
    assert traffic.turns
    assert traffic.aborted
    whole = [answer for answer in traffic.answers if answer.asked]
    assert len(whole) > 10
    assert all(len(answer.output) == answer.asked for answer in whole)
    for answer in traffic.answers:
        assert answer.output == [(answer.prompt[-1] + 1 + index) % 508 for index in range(len(answer.output))]


@pytest.mark.slow
def test_drafts_are_counted_once_for_an_answer_and_half_the_prompts_of_an_n_gram_drafter_are_repeated() -> None:
    with _server() as port:
        clients = Clients(replace(sglang(1), controls=(), sessions=0, drafter=NGRAM), port, SEED, clients=2)
        traffic = clients.run(0, least=40)
    verified, right = traffic.drafts
    assert verified == 3 * right
    # An answer that its client cuts off before its end has no last message.
    assert sum(answer.asked > 0 for answer in traffic.answers) <= right < len(traffic.answers)
    prompts = [tuple(answer.prompt) for answer in traffic.answers]
    assert len(set(prompts)) < 0.8 * len(prompts)


@pytest.mark.slow
def test_a_session_goes_on_without_its_aborted_turns() -> None:
    asked: dict[str, list[int]] = {}
    with _server(prompts=asked) as port:
        clients = Clients(replace(sglang(SEED), controls=(), sessions=4), port, SEED, clients=4)
        traffic = clients.run(2)
    assert not traffic.failures
    assert all(answer.prompt == asked[answer.rid] for answer in traffic.answers)
    aborted = set[str]()
    later = 0
    for answer in traffic.answers:
        session, turn, _ = [*answer.rid.split("."), ""][:3]
        if turn and answer.asked:
            later += session in aborted
        elif turn:
            aborted.add(session)
    assert later


@pytest.mark.slow
def test_a_refused_turn_has_no_answer_and_its_session_goes_on() -> None:
    with _server(stuck=True) as port:
        traffic = Clients(replace(sglang(SEED), controls=(), sessions=4), port, SEED, clients=4).run(0, least=100)
    assert not traffic.failures
    empty = [answer.rid for answer in traffic.answers if not answer.output]
    assert 0 < traffic.refused <= len(empty)
    later = {answer.rid for answer in traffic.answers if answer.asked}
    assert any(f"{rid[:-2]}{int(rid[-2]) + 1}." in later for rid in empty if rid.count(".") == 2)
    for answer in traffic.answers:
        assert answer.output == [(answer.prompt[-1] + 1 + index) % 508 for index in range(len(answer.output))]


@pytest.mark.slow
def test_a_pair_answers_from_what_its_first_server_holds() -> None:
    with _server() as port:
        traffic = Clients(replace(vllm(0), pair=True), port, 0, clients=4, prefill=port).run(0, least=25)
    assert not traffic.failures
    for answer in traffic.answers:
        assert answer.output == [(answer.prompt[-1] + 1 + index) % 508 for index in range(len(answer.output))]


def test_the_servers_of_a_pair_are_named_and_have_one_process_each() -> None:
    one = vllm(0)
    two = halves(replace(one, pair=True), [1, 2])
    for name, half in two.items():
        assert json.loads(half.arguments[-1])["engine_id"] == name
        assert half.environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
        assert half.arguments[: len(one.arguments)] == one.arguments
    assert [*two] == ["prefill", "decode"]


def test_the_servers_of_an_sglang_pair_meet_at_one_port_and_have_no_sessions() -> None:
    one = sglang(SEED)
    assert "--enable-streaming-session" in one.arguments
    for name, half in halves(replace(one, pair=True), [1, 2]).items():
        assert half.arguments[half.arguments.index("--disaggregation-mode") + 1] == name
        assert half.arguments[half.arguments.index("--disaggregation-bootstrap-port") + 1] == "1"
        assert "--enable-streaming-session" not in half.arguments and not half.sessions
        assert half.meeting(7) == {"bootstrap_host": "127.0.0.1", "bootstrap_port": 1, "bootstrap_room": 7}


@pytest.mark.slow
def test_each_request_of_an_sglang_pair_is_sent_to_both_servers_at_once() -> None:
    half = halves(replace(sglang(SEED), pair=True), [1, 2])["decode"]
    with _server() as port:
        traffic = Clients(half, port, SEED, clients=4, prefill=port).run(0, least=25)
    assert not traffic.failures
    for answer in traffic.answers:
        assert answer.output == [(answer.prompt[-1] + 1 + index) % 508 for index in range(len(answer.output))]


def test_a_request_that_decode_ends_is_not_waited_for_at_prefill(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client, "GRACE", 0.1)
    half = halves(replace(sglang(SEED), pair=True), [1, 2])["decode"]
    with _server(decode_ends=True) as port:
        traffic = Clients(half, port, SEED, clients=2, prefill=port).run(0.5)
    assert not traffic.failures
    assert traffic.aborted > 2


@pytest.mark.slow
def test_traffic_goes_on_until_there_are_enough_answers() -> None:
    with _server() as port:
        traffic = Clients(sglang(SEED), port, SEED, clients=4).run(0, least=25)
    assert sum(answer.asked > 0 for answer in traffic.answers) >= 25


@pytest.mark.slow
def test_a_request_that_is_never_answered_is_a_failure(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kvlab.serving.client.PATIENCE", 0.3)
    with _server(silent=True) as port:
        traffic = Clients(sglang(SEED), port, SEED, clients=2).run(30)
    assert any("timed out" in failure for failure in traffic.failures)


def test_a_server_on_a_gpu_has_the_kernels_of_its_environment() -> None:
    server = on_gpu(sglang(1))
    assert "cuda" in server.arguments and "cpu" not in server.arguments
    assert "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND" in server.environment
    assert not server.environment.keys() & {"SGLANG_USE_CPU_ENGINE", "TRITON_INTERPRET", "KVSPEC_STUBS"}


@pytest.mark.parametrize("engine", SERVERS)
def test_a_seed_draws_the_same_server(engine: str) -> None:
    assert SERVERS[engine](3).arguments == SERVERS[engine](3).arguments
    assert len({tuple(SERVERS[engine](seed).arguments) for seed in range(20)}) > 3


def test_where_arrays_begin_is_chosen() -> None:
    code = "import numpy; print({numpy.zeros((2, 3), numpy.int32).ctypes.data % 64 for _ in range(9)})"
    for past in (0, 32):
        chosen = f"from kvlab.serving.arrays import begin_arrays; begin_arrays({past}); {code}"
        done = subprocess.run([sys.executable, "-c", chosen], capture_output=True, text=True, check=True)
        assert done.stdout == f"{{{past}}}\n"


def test_a_fault_waits_for_its_own_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    """SGLang's processes import transformers, too."""
    monkeypatch.setattr(sys, "meta_path", [*sys.meta_path])
    wait_for_engine("sglang: tail not freed")
    waiting = sys.meta_path[0]
    assert isinstance(waiting, After)
    assert waiting.names == {"sglang.srt.managers.scheduler"}


def test_known_issues_are_fixed_once_the_engine_is_imported() -> None:
    wait = "from kvlab.serving.faults import wait_to_fix; wait_to_fix('transformers')"
    ask = (
        "from transformers.generation.continuous_batching.scheduler import Scheduler; "
        "print(hasattr(Scheduler.clear_cancelled_requests, '__injected__'))"
    )
    for code, fixed in ((ask, False), (f"{wait}; {ask}", True)):
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
        assert done.stdout == f"{fixed}\n"


class _AttentionOf0512:
    """Rows are of the batch."""

    def forward_decode(self, forward_batch: Any) -> Any:
        return (
            forward_batch.req_to_token_pool.req_to_token,
            forward_batch.seq_lens,
        )


def test_attention_whose_rows_are_of_the_batch_is_left_unchanged() -> None:
    before = {**vars(_AttentionOf0512)}
    kernels._read_windows(_AttentionOf0512)
    assert vars(_AttentionOf0512) == before


def test_vllm_sends_new_tokens_only() -> None:
    server = vllm(0)
    message = {"choices": [{"token_ids": [4, 5], "finish_reason": None}]}
    assert server.answered(message) == ([4, 5], None)
    assert not server.cumulative
    assert server.ask("r", [1], 2)[1]["return_token_ids"]


def test_a_wrong_token_names_the_pages_that_were_read_for_it(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "trace-1.jsonl")
    writer.header("test", {"kv": Pool(page_size=4, num_pages=8)})
    writer.emit(Map("c0-1.0", "c0-1.0", "kv", 0, [3, 5], ["a", "b"]))
    writer.emit(Begin(1, "device", writes=[Use("c0-1.0", start=0, stop=7)]))
    writer.emit(Map("c0-1.0", "c0-1.0", "kv", 0, [2, 4], ["a", "b"]))  # what another step reads is none of it
    writer.emit(Begin(2, "device", writes=[Use("c0-1.0", start=0, stop=7)]))
    writer.close()
    run = Run(Clients(sglang(0), 0, 0, 0).traffic, sorted(tmp_path.iterdir()), [Difference("c0-1.", 7, 8, 9, 0.5)])
    assert report.wrong_tokens(run) == [
        "wrong token: request c0-1. position 7: 9 and not 8, computed from kv pages 3, 5 (line 3)"
    ]


def test_known_issues_are_named_and_other_findings_are_counted(tmp_path: Path) -> None:
    writer = TraceWriter(tmp_path / "other.jsonl")
    writer.header("test", {"kv": Pool(page_size=4, num_pages=8)})
    writer.emit(Take("a", "kv", [3]), Take("b", "kv", [3]))
    writer.close()
    shown = FOUND / "sglang" / "pair-source-freed-0.5.23.jsonl"
    said = report.known_issues(Run(client.Traffic(), [shown, *tmp_path.iterdir()]), "sglang", "0.5.23", merge=False)
    assert said == ["known issue pair-source-freed of sglang: 1 finding", "no known issue: 1 finding"]
    cut = tmp_path / "cut.jsonl"
    cut.write_text(shown.read_text(encoding="utf-8") + "{", encoding="utf-8")
    assert report.known_issues(Run(client.Traffic(), [cut]), "sglang", "", merge=False) == said[:1]
    assert report.known_issues(Run(client.Traffic(), [cut]), "transformers", "5.19.0", merge=False) == said[1:]


@pytest.mark.parametrize("drafter", DRAFTERS)
def test_a_seed_draws_the_number_of_drafts(drafter: str, tmp_path: Path) -> None:
    servers = [with_drafts(vllm(3), seed, drafter, tmp_path) for seed in range(20)]
    configs = [json.loads(server.arguments[-1]) for server in servers]
    assert {config["num_speculative_tokens"] for config in configs} == {1, 3, 5}
    assert {config.get("model", "") for config in configs} == {"" if drafter == "ngram" else str(tmp_path)}
    assert {server.drafter for server in servers} == {drafter}


def test_a_seed_draws_the_number_of_sglang_s_drafts_and_branches_beside_pages_of_one_token(tmp_path: Path) -> None:
    servers = [with_drafts(sglang(seed), seed, NGRAM, tmp_path) for seed in range(40)]
    assert all(server.environment["SGLANG_NATIVE_MOVE_KV_CACHE"] == "1" for server in servers)
    drawn = set()
    for server in servers:
        given = dict(zip(server.arguments, server.arguments[1:], strict=False))
        branches = given["--speculative-ngram-max-bfs-breadth"]
        drawn.add((given["--page-size"] == "1", given["--speculative-num-draft-tokens"], branches))
    assert drawn == {(one, drafts, "1") for one in (False, True) for drafts in "246"} | {(True, n, "3") for n in "246"}


METRICS = """# TYPE vllm:spec_decode_num_draft_tokens_total counter
vllm:spec_decode_num_draft_tokens_total{engine="0",model_name="/tmp/m"} 12088.0
vllm:spec_decode_num_draft_tokens_created{engine="0",model_name="/tmp/m"} 1.79e+09
vllm:spec_decode_num_accepted_tokens_total{engine="0",model_name="/tmp/m"} 4509.0
vllm:spec_decode_num_accepted_tokens_per_pos_total{engine="0",model_name="/tmp/m",position="0"} 4000.0
"""


def test_drafts_are_counted_and_a_run_without_any_has_failed() -> None:
    assert vllm(0).verified(METRICS) == (12088, 4509)
    assert vllm(0).verified("") == (0, 0)
    run = Run(client.Traffic(), [Path("trace")], drafts=(0, 0))
    assert report.failures(run) == ["the server has verified no draft"]
    run.drafts = (2, 0)
    assert not report.failures(run)
    assert sglang(0).drafted({"spec_num_proposed_drafts": 8, "spec_num_correct_drafts": 3}) == (8, 3)
    assert sglang(0).drafted({}) == (0, 0)


def test_a_port_leaves_room_for_a_further_one_above_it() -> None:
    assert all(0 < _free_port() <= HIGHEST == 65_535 - 10_000 for _ in range(200))


def test_a_server_that_sends_no_metrics_is_one_line() -> None:
    with pytest.raises(NoEnvironment, match="it sends no metrics: "):
        _metrics(_free_port())


def test_a_recording_that_its_hooks_have_ended_is_a_failure(tmp_path: Path) -> None:
    log = tmp_path / "server.log"
    handler = logging.FileHandler(log)
    logging.getLogger("kvattach").addHandler(handler)
    hooks = Hooks(TraceWriter(tmp_path / "trace.jsonl"))
    assert not trace_ended(log)
    hooks.guarded(lambda: 1 // 0)
    logging.getLogger("kvattach").removeHandler(handler)
    handler.close()
    run = Run(Clients(sglang(0), 0, 0, 0).traffic, [tmp_path], ended=trace_ended(log))
    (line,) = report.failures(run)
    assert line.startswith("the recording ends before the traffic: ")
    assert line.endswith("ZeroDivisionError: integer division or modulo by zero")


def test_a_vllm_server_with_a_host_cache_has_one_process_and_no_cuda() -> None:
    server = with_host_cache(vllm(3), 3, LAZY)
    assert server.environment["VLLM_ENABLE_V1_MULTIPROCESSING"] == "0"
    assert server.environment["KVSPEC_STUBS"].endswith(",cuda")
    assert "SimpleCPUOffloadConnector" in server.arguments[-1]


def test_a_vllm_server_with_chunks_on_the_host_draws_their_length_and_policy() -> None:
    drawn = {with_host_cache(vllm(3), seed, "OffloadingConnector").arguments[-1] for seed in range(20)}
    for option in ("lru", "arc", '"blocks_per_chunk": 1', '"blocks_per_chunk": 2'):
        assert any(option in one for one in drawn), option
    assert all('"kv_connector": "OffloadingConnector"' in one and "lazy" not in one for one in drawn)


def test_a_server_with_windows_draws_them_and_their_room() -> None:
    drawn = [with_windows(sglang(1), seed) for seed in range(30)]
    assert {server.window for server in drawn} == {16, 32, 64}
    assert {server.arguments[-1] for server in drawn} == {"0.5", "0.8", "1.0"}
    assert with_windows(vllm(1), 1).arguments == vllm(1).arguments


def test_attention_of_windows_reads_the_slots_that_it_has_written() -> None:
    torch = pytest.importorskip("torch")
    pool = SimpleNamespace(
        layers_mapping={0: (0, True), 1: (0, False)},
        translate_loc_from_full_to_swa=lambda slots: torch.tensor([0, 30, 20, 10])[slots],
    )
    rows = torch.tensor([[1, 2], [3, 0]], dtype=torch.int32)
    attention = SimpleNamespace(
        req_to_token_pool=SimpleNamespace(req_to_token=rows), token_to_kv_pool=pool, use_sliding_window_kv_pool=True
    )
    assert kernels._rows(attention, SimpleNamespace(layer_id=0)).tolist() == [[30, 20], [10, 0]]
    assert kernels._rows(attention, SimpleNamespace(layer_id=1)) is rows
    attention.use_sliding_window_kv_pool = False
    assert kernels._rows(attention, SimpleNamespace(layer_id=0)) is rows


def test_a_server_with_states_has_pages_of_one_token() -> None:
    server = with_states(sglang(1), 1)
    assert server.states
    assert server.arguments[-4:-1] == ["--page-size", "1", "--max-mamba-cache-size"]


def test_a_convolution_goes_on_from_its_states() -> None:
    torch = pytest.importorskip("torch")
    torch.manual_seed(0)
    weight, whole = torch.randn(2, 3), torch.randn(2, 5)
    states, slots = torch.zeros(4, 2, 2), torch.tensor([3])

    def convolved(x: Any, goes_on: bool) -> Any:
        return kernels._convolve(
            x,
            weight,
            None,
            query_start_loc=torch.tensor([0, x.shape[1]]),
            cache_indices=slots,
            has_initial_state=torch.tensor([goes_on]),
            conv_states=states,
        )

    at_once = convolved(whole, goes_on=False)
    assert torch.equal(states[3], whole[:, 3:]) and not states[:3].any()
    states[3] = 9.0
    parts = [convolved(whole[:, :2], goes_on=False), convolved(whole[:, 2:4], goes_on=True)]
    last = kernels._convolve_next(whole[:, 4][None], states, weight, None, conv_state_indices=slots)
    assert torch.allclose(torch.cat([*parts, last.T], dim=1), at_once)
    assert torch.equal(states[3], whole[:, 3:])


def test_an_engine_without_pins_is_one_line() -> None:
    with pytest.raises(NoEnvironment, match="no pinned packages for a server of tgi"):
        environment("tgi", print)


def test_older_releases_have_an_environment_with_other_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    installed: list[str] = []

    def done(command: list[str]) -> None:
        if "venv" in command:
            Path(command[-1]).mkdir(parents=True)
        else:
            installed.append(Path(command[-1]).name)

    monkeypatch.setattr("kvlab.serving.environment._done", done)
    pythons = [environment("sglang", lambda _: None, version) for version in ("0.5.21", "0.5.22", "")]
    assert installed == ["sglang.txt", "sglang-older.txt", "sglang.txt"]
    assert pythons[0] != pythons[1] == pythons[2]


def test_a_python_that_does_not_run_is_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shim = tmp_path / "python3.12"
    shim.write_text("#!/bin/sh\necho 'shims: no such version' >&2\necho 'Note: see the help' >&2\nexit 127\n")
    shim.chmod(0o755)
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with pytest.raises(NoEnvironment, match=f"in python3.12, but {shim} does not run: shims: no such version"):
        environment("sglang-jax", print)


def test_our_packages_are_linked_where_those_of_engines_are_not_installed(tmp_path: Path) -> None:
    code = "import sys; sys.modules.update(numpy=None, torch=None); from pathlib import Path; "
    code += "from kvlab.serving.environment import search_path; search_path(Path(sys.argv[1]), None)"
    subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=True)
    assert (tmp_path / "packages" / "kvcuda" / "__init__.py").is_file()


@pytest.mark.parametrize(
    ("arguments", "line"),
    [
        (["tgi==1.0"], "'tgi==1.0' is no release"),
        (["sglang==0.5.23", "--keep", "."], ". is there already"),
        (["sglang-jax"], "--checkout names the folder of sglang-jax"),
        (["sglang==0.5.23", "--checkout", "."], "and of no other engine"),
        (["sglang==0.5.23", "--python", "/nowhere/python"], "/nowhere/python"),
        (["vllm==0.32.0", "--without-known"], "--without-known is not for vllm"),
        (["transformers==5.19.0", "--host-cache"], "--host-cache is for sglang and vllm alone"),
        (["vllm==0.32.0", "--host-cache", "--connector", "Other"], "--connector is SimpleCPUOffloadConnector or"),
        (["vllm==0.32.0", "--connector", "OffloadingConnector"], "for vllm with --host-cache"),
        (["transformers==5.19.0", "--pair"], "--pair is for vllm and sglang alone"),
        (["sglang==0.5.23", "--pair", "--host-cache"], "without --host-cache"),
        (["sglang==0.5.23", "--windows", "--pair"], "for sglang without --host-cache and --pair"),
        (["vllm==0.32.0", "--states"], "--states is for sglang alone"),
        (["transformers==5.19.0", "--windows"], "--windows is for vllm, and for sglang without"),
        (["transformers==5.19.0", "--drafts", "ngram"], "--drafts is ngram or model or eagle, for vllm, or"),
        (["sglang==0.5.23", "--drafts", "eagle"], "for vllm, or ngram for sglang"),
        (["sglang==0.5.23", "--drafts", "ngram", "--states"], "--drafts of sglang is without --windows, --states"),
        (["vllm==0.32.0", "--drafts", "medusa"], "--drafts is ngram or model or eagle"),
        (["vllm==0.32.0", "--drafts", "eagle", "--windows"], "--drafts eagle is without --windows: vLLM wants"),
        (["vllm==0.32.0", "--drafts", "model", "--windows"], "--drafts model is without --windows: vLLM wants"),
        (["sglang==0.5.23", "--cuda"], "--cuda is for sglang alone, with --python"),
    ],
)
def test_a_wrong_call_is_one_line(arguments: list[str], line: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert run_command(["serve", *arguments]) == 2
    (said,) = [one for one in capsys.readouterr().err.splitlines() if one.startswith("kvspec: ") or line in one]
    assert line in said


def test_help_teaches() -> None:
    assert "kvspec serve sglang==0.5.23 --minutes 2" in CliRunner().invoke(app, ["serve", "--help"]).output


LEAVING = """
import sys, tempfile
from http.server import BaseHTTPRequestHandler, HTTPServer

class Healthy(BaseHTTPRequestHandler):
    def do_GET(self):
        self.send_response(200)
        self.end_headers()

print(tempfile.mkstemp()[1], flush=True)
HTTPServer(("127.0.0.1", int(sys.argv[-1])), Healthy).serve_forever()
"""


def test_temporary_files_of_a_server_are_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "leaving.py").write_text(LEAVING)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    log = tmp_path / "server.log"
    with running(Server("vllm", ["leaving"]), Path(sys.executable), tmp_path, log, {"PYTHONPATH": str(tmp_path)}):
        left = Path(log.read_text().splitlines()[0])
        assert left.is_file() and left.is_relative_to(tmp_path)
    assert not left.parent.exists()
