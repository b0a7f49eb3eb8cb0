"""Streaming sessions that stop an SGLang server, or get wrong text: requests in, tokens out, with its own means alone.

    python sessions.py session-rows [options of the server]
    python sessions.py session-order [options of the server]
    python sessions.py session-without-cache [options of the server]
    python sessions.py session-preempted [options of the server]
    python sessions.py session-rejected [options of the server]
    python sessions.py session-retracted [options of the server]

The names are those of the table in `sglang.md`. The server runs on the CPU with a tiny model of random weights; where
SGLang is built for a GPU, give `--device cuda --attention-backend ...`.
"""

import contextlib
import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from importlib import import_module
from pathlib import Path
from typing import Any

BOOT = 1200
PATIENCE = 60
"""Seconds after which a request counts as unanswered; a turn takes less than one."""

ON_CPU = ["--device", "cpu", "--attention-backend", "torch_native", "--dtype", "float32", "--disable-cuda-graph"]
ON_CPU += ["--mem-fraction-static", "0.2", "--context-length", "1024", "--max-total-tokens", "1024"]
ON_CPU += ["--chunked-prefill-size", "64", "--enable-streaming-session"]


class Server:
    """A server that runs."""

    def __init__(self, folder: Path, switches: dict[str, str], *options: str) -> None:
        """Start it, and wait until it answers."""
        with socket.socket() as free:
            free.bind(("127.0.0.1", 0))
            self.port = free.getsockname()[1]
        self.log = folder / "server.log"
        command = [sys.executable, "-m", "sglang.launch_server", "--model-path", str(folder / "model")]
        command += ["--port", str(self.port), *ON_CPU, *options]
        offline = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1"}
        environment = {**os.environ, "SGLANG_USE_CPU_ENGINE": "1", **offline, **switches}
        with self.log.open("wb") as out:
            self.process = subprocess.Popen(command, env=environment, stdout=out, stderr=out, process_group=0)
        ends = time.monotonic() + BOOT
        while self.get("/health") != 200:
            if self.process.poll() is not None or time.monotonic() > ends:
                raise SystemExit(f"the server does not start: {self.last()}")
            time.sleep(1)

    def get(self, path: str) -> int:
        """The status of a request without a body; 0 if nobody answers."""
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.port}{path}", timeout=10) as answer:
                return int(answer.status)
        except OSError:
            return 0

    def post(self, path: str, body: dict[str, Any]) -> Any:
        """The answer; `None` if there is none, for `PATIENCE` seconds or for ever."""
        address, kind = f"http://127.0.0.1:{self.port}{path}", {"Content-Type": "application/json"}
        try:
            request = urllib.request.Request(address, json.dumps(body).encode(), kind)
            with urllib.request.urlopen(request, timeout=PATIENCE) as answer:
                return json.loads(answer.read() or b"{}")
        except OSError:
            return None

    def open(self, session: str) -> None:
        """Open a streaming session."""
        self.post("/open_session", {"session_id": session, "capacity_of_str_len": 1000, "streaming": True})

    def ask(self, tokens: list[int], session: str = "") -> str:
        """How a request, or a turn of a session, is answered, in words."""
        answer = self.tokens(tokens, session)
        return "no answer" if answer is None else f"{len(answer)} tokens"

    def tokens(self, tokens: list[int], session: str = "", asked: int = 8, **more: object) -> list[int] | None:
        """The tokens that a request, or a turn of a session, is answered; `None`: there are none, or an error."""
        sampling = {"max_new_tokens": asked, "temperature": 0, "ignore_eos": True}
        named = {"session_params": {"id": session}} if session else {}
        answer = self.post("/generate", {"input_ids": tokens, "sampling_params": sampling, **named, **more})
        ended = answer is not None and answer["meta_info"]["finish_reason"]["type"] == "length"
        return list(answer["output_ids"]) if ended else None

    def state(self) -> str:
        """Whether the server runs and says that it is well, and its last error."""
        ends = time.monotonic() + PATIENCE
        while self.process.poll() is None and time.monotonic() < ends:
            if self.get("/health") == 200:
                return "the server runs, and /health says 200"
            time.sleep(1)
        if self.process.poll() is None:
            return f"the server runs, and /health does not answer for {PATIENCE} s"
        return f"the server has ended: {self.last()}"

    def last(self) -> str:
        """The last line of its log that names an error."""
        lines = self.log.read_text(errors="replace").splitlines()
        return next((line for line in reversed(lines) if "Error" in line), "no error in its log")

    def end(self) -> None:
        """End all of its processes."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self.process.pid, 9)
        self.process.wait()


def make(folder: Path) -> None:
    """A Llama of two layers and a tokenizer of one word a token."""
    transformers, tokenizers = import_module("transformers"), import_module("tokenizers")
    config = transformers.LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        bos_token_id=508,
        eos_token_id=509,
        pad_token_id=510,
    )
    model = transformers.LlamaForCausalLM(config).float()
    for name, weight in model.named_parameters():
        if weight.dim() == 2:
            # Attention that looks at few places: tokens depend on what the cache holds.
            weight.data.normal_(0, (2.0 if "q_proj" in name or "k_proj" in name else 1.2) / weight.shape[1] ** 0.5)
    model.save_pretrained(folder)
    words = {word: number for number, word in enumerate([*(f"t{i}" for i in range(508)), "<s>", "</s>", "<p>", "<u>"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<u>"))
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<p>", unk_token="<u>"
    ).save_pretrained(folder)


def prompt(first: int, length: int) -> list[int]:
    """Some tokens."""
    return [(first + 7 * at) % 500 for at in range(length)]


def rows(server: Server) -> None:
    """As many sessions as requests may run, each with one turn: none goes on, and nobody else is answered."""
    for number in range(4):
        server.open(f"s{number}")
        print(f"session {number}, first turn: {server.ask(prompt(number, 20), f's{number}')}", flush=True)
    with ThreadPoolExecutor(2) as both:
        turn = both.submit(server.ask, prompt(9, 5), "s0")
        other = both.submit(server.ask, prompt(5, 20))
        print(f"session 0, second turn: {turn.result()} within {PATIENCE} s")
        print(f"a request without a session: {other.result()} within {PATIENCE} s")


def order(server: Server) -> None:
    """A second turn waits while requests are sorted by their nodes in the tree."""
    server.open("s0")
    print(f"first turn: {server.ask(prompt(0, 20), 's0')}", flush=True)
    print(f"second turn: {server.ask(prompt(9, 5), 's0')}")


def without_cache(server: Server) -> None:
    """A second turn is longer than a chunk, and no end of it is awaited."""
    server.open("s0")
    print(f"first turn: {server.ask(prompt(0, 20), 's0')}", flush=True)
    print(f"second turn: {server.ask(prompt(9, 150), 's0')}")


def preempted(server: Server) -> None:
    """As many first turns run as there are rows, and two requests of higher priority come together."""
    sampling = {"max_new_tokens": 8, "temperature": 0, "ignore_eos": True}
    both = {"input_ids": [prompt(3, 30), prompt(4, 30)], "sampling_params": sampling, "priority": 100}
    for number in range(2):
        server.open(f"s{number}")
    with ThreadPoolExecutor(2) as clients:
        turns = [clients.submit(server.tokens, prompt(number, 20), f"s{number}", 200) for number in range(2)]
        time.sleep(2)
        print(
            f"two requests of higher priority: {'no answer' if server.post('/generate', both) is None else 'answered'}"
        )
        print(f"first turns: {_count(turns)} of 2 answered")


def _count(answers: list[Future[list[int] | None]]) -> int:
    return sum(answer.result() is not None for answer in answers)


def rejected(server: Server) -> None:
    """A turn is sent again while it runs, and its session is closed then; others get the memory that it runs in."""
    first, second = prompt(0, 200), prompt(9, 5)
    others = [prompt(number, 90) for number in range(10, 16)]
    begun = server.tokens(first) or []
    alone = [server.tokens(other, "", 40) for other in others] + [server.tokens(first + begun + second, "", 400)]
    server.get("/flush_cache")
    server.open("s0")
    print(f"first turn: {server.ask(first, 's0')}", flush=True)
    with ThreadPoolExecutor(8) as clients:
        turn = clients.submit(server.tokens, second, "s0", 400)
        time.sleep(1)
        print(f"the second turn, sent again while it runs: {server.ask(second, 's0')}", flush=True)
        server.post("/close_session", {"session_id": "s0"})
        answers = [clients.submit(server.tokens, other, "", 40) for other in others] + [turn]
    names = [*(f"request {number}" for number in range(len(others))), "the second turn"]
    for name, answer, expected in zip(names, answers, alone, strict=True):
        print(f"{name}: {_beside(answer.result(), expected)}")


def retracted(server: Server) -> None:
    """A turn is retracted again and again, as where memory is short: its session is sent another one, or aborts it."""
    first, second, third = prompt(0, 40), prompt(9, 5), prompt(4, 7)
    begun = server.tokens(first) or []
    alone = server.tokens(first + begun + second, "", 200)
    without = server.tokens(first + begun + third, "", 30)
    server.open("s0")
    print(f"first turn: {server.ask(first, 's0')}")
    print(f"second turn, with no other sent: {_beside(server.tokens(second, 's0', 200), alone)}", flush=True)
    server.open("s1")
    print(f"first turn: {server.ask(first, 's1')}", flush=True)
    with ThreadPoolExecutor(1) as clients:
        turn, early = clients.submit(server.tokens, second, "s1", 200), "rejected"
        while early == "rejected" and not turn.done():
            early = "rejected" if server.tokens(third, "s1", 30) is None else "let in"
        print(f"third turn, sent too early: {early}", flush=True)
    print(f"second turn: {_beside(turn.result(), alone)}")
    server.open("s2")
    print(f"first turn: {server.ask(first, 's2')}", flush=True)
    sampling = {"max_new_tokens": 300, "temperature": 0, "ignore_eos": True}
    body = {"rid": "second", "input_ids": second, "sampling_params": sampling, "session_params": {"id": "s2"}}
    with ThreadPoolExecutor(3) as clients:
        for number in (5, 6):  # the server retracts no request that runs alone
            clients.submit(server.tokens, prompt(number, 20), "", 300)
        aborted = clients.submit(server.post, "/generate", body)
        time.sleep(0.7)
        server.post("/abort_request", {"rid": "second"})
        tokens = aborted.result()["output_ids"]
    print(f"second turn, aborted: {len(tokens)} tokens")
    answer = server.tokens(third, "s2", 30)
    print(f"third turn, as if it were the second: {_beside(answer, without)}")
    after = server.tokens(first + begun + second + tokens + third, "", 30)
    print(f"third turn, as if the second were not aborted: {_beside(answer, after)}")


def _beside(answer: list[int] | None, alone: list[int] | None) -> str:
    """An answer beside the server's own to the same tokens as one request, asked before with nothing else running."""
    if answer is None or alone is None:
        return "no answer"
    wrong = next((at for at, pair in enumerate(zip(answer, alone, strict=False)) if pair[0] != pair[1]), None)
    return f"{len(answer)} tokens, {'as alone' if wrong is None else f'other ones than alone from number {wrong} on'}"


CASES: dict[str, tuple[Callable[[Server], None], list[str]]] = {
    "session-rows": (rows, ["--max-running-requests", "4"]),
    "session-order": (order, ["--schedule-policy", "dfs-weight"]),
    "session-without-cache": (without_cache, ["--disable-radix-cache"]),
    "session-preempted": (preempted, ["--max-running-requests", "2", "--enable-priority-scheduling"]),
    "session-rejected": (rejected, ["--max-running-requests", "8"]),
    "session-retracted": (retracted, ["--max-running-requests", "8"]),
}
RETRACTS = {"session-retracted": {"SGLANG_TEST_RETRACT": "1", "SGLANG_TEST_RETRACT_INTERVAL": "20"}}
"""A switch of SGLang's own tests: the server retracts requests although it has memory for them."""


def main() -> None:
    """Start a server, send what stops it, and say what came of it."""
    run, options = CASES[sys.argv[1]]
    with tempfile.TemporaryDirectory() as scratch:
        make(Path(scratch) / "model")
        server = Server(Path(scratch), RETRACTS.get(sys.argv[1], {}), *options, *sys.argv[2:])
        try:
            run(server)
            print(server.state())
        finally:
            server.end()


if __name__ == "__main__":
    main()
