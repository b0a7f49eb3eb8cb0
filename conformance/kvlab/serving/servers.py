"""The servers that can be started here: their command lines, requests and answers, each drawn from a seed."""

import json
import random
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from http import HTTPStatus
from pathlib import Path
from typing import Any

Request = tuple[str, dict[str, Any]]
"""Path and body."""

REFUSED = "refused"
"""Why an answer ends whose request the server rejects in a stream, with a status like that of an HTTP error."""

Control = Callable[[str], Sequence[Request]]
"""Control requests to a server, given the name of a running request."""

CHECKED_OUT = "sglang-jax"
"""The engine that runs from a checkout: it has no releases on the package index."""

LAZY = "SimpleCPUOffloadConnector"
CONNECTORS = (LAZY, "OffloadingConnector")
"""vLLM's connectors to a cache on the host."""

NGRAM, MODEL, EAGLE = DRAFTERS = ("ngram", "model", "eagle")
"""The drafters of a server: n-grams of a request's own tokens, a model, and a head on the server's model."""

PAIR = ("prefill", "decode")
"""The two servers of a pair."""

_OF_CPU = {"SGLANG_USE_CPU_ENGINE", "TRITON_INTERPRET", "KVSPEC_STUBS"}
"""The variables of an SGLang server on a CPU."""


_ONE_PROCESS = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0"}
"""vLLM's scheduler and worker are one process, as on a GPU: on a CPU they are two by default."""

TOKEN_BYTES = 2048
"""The KV bytes of a token of the model: two layers of two heads, each with keys and values of 64 numbers."""


@dataclass(frozen=True)
class Server:
    """One server with its configuration."""

    engine: str
    arguments: list[str]
    """The module that starts it, and its arguments except model and port."""
    environment: dict[str, str] = field(default_factory=dict)
    controls: tuple[Control, ...] = ()
    sessions: int = 0
    """The most clients with a session at a time. A session keeps its row and pages between turns; a server with all
    rows or pages in sessions waits forever."""
    cumulative: bool = True
    """Whether each message of a stream contains all tokens so far."""
    issues: dict[str, dict[str, str]] = field(default_factory=dict)
    """Known issue that depends on chance -> the environment that shows it."""
    head_dim: int = 64
    """The model's head dimension; 64 is the least for which vLLM has attention on a CPU."""
    window: int = 0
    """The tokens of the window that one of the model's two layers has; 0: it has none."""
    states: bool = False
    """Whether one of the model's two layers has a recurrent state."""
    drafter: str = ""
    """The drafter whose drafts it verifies; empty: it has none."""
    pair: bool = False
    """Whether it is two servers: one computes the prompts, and the other gets their KV and answers."""
    bootstrap: int = 0
    """The port of an SGLang pair at which decode asks for prefill's addresses."""
    has_torch: bool = True
    """Whether its environment can make a model and check answers; otherwise kvspec's Python does."""

    def command(self, model: Path, port: int) -> list[str]:
        """Python's arguments to start it."""
        named = "--model-path" if self.engine.startswith("sglang") else "--model"
        return ["-m", *self.arguments, named, str(model), "--port", str(port)]

    def ask(self, rid: str, tokens: list[int], asked: int, session: str = "") -> Request:
        """The request for `asked` tokens after `tokens`."""
        if self.engine != "vllm":
            body: dict[str, Any] = {
                "rid": rid,
                "input_ids": tokens,
                "stream": True,
                # sglang-jax also leaves special tokens out of the ids that it sends.
                "sampling_params": {
                    "max_new_tokens": asked,
                    "temperature": 0,
                    "ignore_eos": True,
                    "skip_special_tokens": False,
                },
            }
            return "/generate", body | ({"session_params": {"id": session}} if session else {})
        return "/v1/completions", {
            "request_id": rid,
            "prompt": tokens,
            "max_tokens": asked,
            "temperature": 0,
            "ignore_eos": True,
            "stream": True,
            "return_token_ids": True,
        }

    def meeting(self, room: int) -> dict[str, Any]:
        """The fields with which the two servers of SGLang's pair find each other for one request."""
        return {"bootstrap_host": "127.0.0.1", "bootstrap_port": self.bootstrap, "bootstrap_room": room}

    def prefill(self, body: dict[str, Any]) -> dict[str, Any]:
        """The body of the same request for vLLM's server that computes the prompt and keeps it for the other."""
        kept = {"do_remote_decode": True, "do_remote_prefill": False}
        return {**body, "max_tokens": 1, "stream": False, "kv_transfer_params": kept}

    def answered(self, message: dict[str, Any]) -> tuple[list[int], str | None]:
        """The tokens in a message of a stream, and why the answer ends with it; `None` if it continues."""
        if self.engine != "vllm":
            reason = message.get("meta_info", {}).get("finish_reason")
            if reason is not None and reason.get("status_code") == HTTPStatus.BAD_REQUEST:
                # Its tokens, if any, are no answer: the prompt was replaced.
                return [], REFUSED
            return message.get("output_ids", []), None if reason is None else reason["type"]
        (choice,) = message["choices"]
        return choice.get("token_ids") or [], choice["finish_reason"]

    def drafted(self, facts: dict[str, Any]) -> tuple[int, int]:
        """The drafts that were verified for an answer, and those that were right, from its facts by SGLang."""
        return facts.get("spec_num_proposed_drafts", 0), facts.get("spec_num_correct_drafts", 0)

    def verified(self, metrics: str) -> tuple[int, int]:
        """The drafts that were verified, and those that were right, from the text of vLLM's metrics."""
        found = (
            re.search(rf"^vllm:spec_decode_num_{name}_tokens_total{{.*}} (.*)$", metrics, re.MULTILINE)
            for name in ("draft", "accepted")
        )
        drafts, right = (int(float(one[1])) if one else 0 for one in found)
        return drafts, right

    def session(self, name: str) -> tuple[Request, Request]:
        """The requests that open and close a streaming session."""
        opened = {"session_id": name, "capacity_of_str_len": 1000, "streaming": True}
        return ("/open_session", opened), ("/close_session", {"session_id": name})


def aborting(rid: str) -> Sequence[Request]:
    """The control request that aborts a running one; vLLM has none."""
    return [("/abort_request", {"rid": rid})]


def sglang(seed: int) -> Server:
    """An SGLang server; the seed draws its page size, memory and loop."""
    rng = random.Random(f"{seed} sglang")
    page_size = rng.choice([1, 4, 16])
    talks, tokens = rng.choice([False, True]), rng.choice([512, 768, 1024])
    # A session has at most 260 tokens.
    sessions = tokens // 350 if talks else 0
    arguments = ["sglang.launch_server", "--device", "cpu", "--attention-backend", "torch_native"]
    arguments += ["--dtype", "float32", "--disable-cuda-graph", "--mem-fraction-static", "0.2"]
    arguments += ["--context-length", "1024", "--max-running-requests", "8"]
    arguments += ["--page-size", str(page_size), "--max-total-tokens", str(tokens)]
    arguments += ["--chunked-prefill-size", str(rng.choice([32, 64, 128]))]
    arguments += ["--enable-mixed-chunk"] * (rng.random() < 0.3)
    arguments += ["--disable-overlap-schedule"] * (rng.random() < 0.3)
    arguments += ["--enable-streaming-session"] * bool(sessions)
    return Server(
        "sglang",
        arguments,
        {
            "SGLANG_USE_CPU_ENGINE": "1",
            # Until 0.5.21 allocators of pages have kernels that are interpreted on a CPU.
            "TRITON_INTERPRET": "1",
            "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": rng.choice(["python", "rust"]),
            **({"SGLANG_TEST_RETRACT": "1"} if rng.random() < 0.3 else {}),
            "KVSPEC_STUBS": "sgl_kernel,torchaudio,torchvision._meta_registrations",
        },
        (
            aborting,
            lambda _: [("/flush_cache", {})],
            lambda _: [("/pause_generation", {"mode": "in_place"}), ("/continue_generation", {})],
            lambda _: [("/pause_generation", {"mode": "retract"}), ("/continue_generation", {})],
        ),
        sessions,
    )


def with_windows(server: Server, seed: int) -> Server:
    """A server whose model has a layer with a window; the seed draws it, and SGLang's room for it."""
    rng = random.Random(f"{seed} windows")
    arguments = [*server.arguments]
    if server.engine == "sglang":
        arguments += ["--swa-full-tokens-ratio", str(rng.choice([0.5, 0.8, 1.0]))]
    return replace(server, arguments=arguments, window=rng.choice([16, 32, 64]))


def with_states(server: Server, seed: int) -> Server:
    """An SGLang server whose model has a layer with a recurrent state; the seed draws the number of states.

    On a CPU such a server has pages of one token, and no buffers of states.
    """
    rng = random.Random(f"{seed} states")
    arguments = [*server.arguments, "--page-size", "1", "--max-mamba-cache-size", str(rng.choice([20, 40]))]
    environment = {**server.environment, "SGLANG_MAMBA_CONV_DTYPE": "float32"}
    return replace(server, arguments=arguments, environment=environment, states=True)


def with_drafts(server: Server, seed: int, drafter: str, model: Path) -> Server:
    """A server that verifies drafts; the seed draws how many a step has. `model` will be the drafter's folder."""
    rng = random.Random(f"{seed} drafts")
    drafts = rng.choice([1, 3, 5])
    if server.engine == "sglang":
        # Drafts are a chain, or with pages of one token a tree.
        branches = 1 if server.arguments[server.arguments.index("--page-size") + 1] != "1" else rng.choice([1, 3])
        arguments = ["--speculative-algorithm", "NGRAM", "--speculative-num-draft-tokens", str(drafts + 1)]
        arguments += ["--speculative-ngram-max-bfs-breadth", str(branches)]
        # The KV of an accepted branch moves to the front; its copy in plain torch needs no kernel.
        environment = {**server.environment, "SGLANG_NATIVE_MOVE_KV_CACHE": "1"}
        return replace(server, arguments=server.arguments + arguments, environment=environment, drafter=drafter)
    config: dict[str, Any] = {"num_speculative_tokens": drafts}
    if drafter == NGRAM:
        config |= {"method": "ngram", "prompt_lookup_min": 1, "prompt_lookup_max": 3}
    else:
        config |= {"method": "draft_model" if drafter == MODEL else drafter, "model": str(model)}
    arguments = [*server.arguments, "--speculative-config", json.dumps(config)]
    return replace(server, arguments=arguments, drafter=drafter)


def with_host_cache(server: Server, seed: int, connector: str) -> Server:
    """An SGLang or vLLM server with a cache on the host, vLLM's by a connector; the seed draws its size and policy.

    SGLang's tree has the core in Python: the hooks do not support the other core with a host cache.
    """
    rng = random.Random(f"{seed} host cache")
    if server.engine == "vllm":
        return _offloading(server, rng, connector)
    arguments = [*server.arguments, "--enable-hierarchical-cache"]
    arguments += ["--hicache-io-backend", "direct", "--hicache-mem-layout", "layer_first"]
    arguments += ["--hicache-ratio", str(rng.choice([1.2, 2.0]))]
    arguments += ["--hicache-write-policy", rng.choice(["write_through", "write_through_selective", "write_back"])]
    environment = {**server.environment, "SGLANG_UNIFIED_RADIX_TREE_CORE_BACKEND": "python"}
    return replace(server, arguments=arguments, environment=environment)


def _offloading(server: Server, rng: random.Random, connector: str) -> Server:
    """With a connector of vLLM's own. The device holds few requests, and the host up to four times as many."""
    page_size = int(server.arguments[server.arguments.index("--block-size") + 1])
    # A layer with a window has blocks of its own.
    tokens = rng.choice([512, 768]) * (2 if server.window else 1)
    options: dict[str, Any] = {"cpu_bytes_to_use": tokens * TOKEN_BYTES * rng.choice([1, 2, 4])}
    if connector == LAZY:
        options["lazy_offload"] = rng.choice([False, True])
    else:
        options["eviction_policy"] = rng.choice(["lru", "arc"])
        options["blocks_per_chunk"] = rng.choice([1, 2])
    transfers = {
        "kv_connector": connector,
        "kv_role": "kv_both",
        "kv_connector_extra_config": options,
    }
    arguments = [*server.arguments, "--num-gpu-blocks-override", str(tokens // page_size)]
    arguments += ["--kv-transfer-config", json.dumps(transfers)]
    stubs = {"KVSPEC_STUBS": f"{server.environment['KVSPEC_STUBS']},cuda"}
    return replace(server, arguments=arguments, environment={**server.environment, **_ONE_PROCESS, **stubs})


def on_gpu(server: Server) -> Server:
    """An SGLang server on a GPU, with the kernels of its environment instead of stubs."""
    arguments = ["cuda" if argument == "cpu" else argument for argument in server.arguments]
    environment = {name: value for name, value in server.environment.items() if name not in _OF_CPU}
    return replace(server, arguments=[*arguments, "--sampling-backend", "pytorch"], environment=environment)


def halves(server: Server, ports: Sequence[int]) -> dict[str, Server]:
    """The two servers of a pair by their names, with a free port for each."""
    if server.engine == "sglang":
        return {name: _half_of_sglang(replace(server, bootstrap=ports[0]), name) for name in PAIR}
    return {name: _half_of_vllm(server, name, port) for name, port in zip(PAIR, ports, strict=True)}


def _half_of_sglang(server: Server, name: str) -> Server:
    """Mooncake transfers, over TCP. A session stays on one server, so there are none."""
    arguments = [one for one in server.arguments if one != "--enable-streaming-session"]
    arguments += ["--disaggregation-mode", name, "--disaggregation-transfer-backend", "mooncake_tcp"]
    arguments += ["--disaggregation-bootstrap-port", str(server.bootstrap)]
    if name == "decode":
        arguments += ["--disaggregation-decode-retraction-backup", "cpu_tensor"]
        arguments += ["--disaggregation-decode-enable-radix-cache"]
        # By default decode keeps 512 tokens free, which may be all that it has; then it waits forever.
        arguments += ["--num-reserved-decode-tokens", "40"]
    environment = {**server.environment, "SGLANG_HOST_IP": "127.0.0.1"}
    controls = server.controls[:1]  # an abort by name; pauses of a pair are not driven
    return replace(server, arguments=arguments, environment=environment, controls=controls, sessions=0)


def _half_of_vllm(server: Server, name: str, port: int) -> Server:
    """NIXL transfers."""
    channel = {**_ONE_PROCESS, "VLLM_NIXL_SIDE_CHANNEL_PORT": str(port)}
    transfers = {"kv_connector": "NixlConnector", "kv_role": "kv_both", "kv_buffer_device": "cpu", "engine_id": name}
    arguments = [*server.arguments, "--kv-transfer-config", json.dumps(transfers)]
    return replace(server, arguments=arguments, environment={**server.environment, **channel})


def sglang_jax(seed: int) -> Server:
    """A sglang-jax server; the seed draws its memory and loop.

    Numpy arrays begin at addresses at which jax copies them; for its known issue at others.
    """
    rng = random.Random(f"{seed} sglang-jax")
    arguments = ["sgl_jax.launch_server", "--device", "cpu", "--attention-backend", "native", "--dtype", "float32"]
    arguments += ["--disable-precompile", "--grammar-backend", "none", "--context-length", "512"]
    arguments += ["--page-size", "1", "--max-running-requests", "8"]
    arguments += [
        "--max-total-tokens",
        str(rng.choice([512, 768])),
        "--chunked-prefill-size",
        str(rng.choice([64, 128])),
    ]
    arguments += ["--disable-overlap-schedule"] * (rng.random() < 0.25)
    return Server(
        CHECKED_OUT,
        arguments,
        {"JAX_PLATFORMS": "cpu", "KVSPEC_ARRAYS": "32"},
        (aborting, lambda _: [("/flush_cache", {})]),
        issues={"cache-loc-reused": {"KVSPEC_ARRAYS": "0"}},
        head_dim=128,
        has_torch=False,
    )


def vllm(seed: int) -> Server:
    """A vLLM server; the seed draws its block size and memory. On a CPU blocks have multiples of 32 tokens."""
    rng = random.Random(f"{seed} vllm")
    arguments = ["vllm.entrypoints.openai.api_server", "--dtype", "float32", "--enforce-eager"]
    arguments += ["--max-model-len", "256", "--max-num-seqs", "8"]
    arguments += ["--block-size", str(rng.choice([32, 64])), "--num-gpu-blocks-override", str(rng.choice([24, 48]))]
    arguments += ["--max-num-batched-tokens", str(rng.choice([32, 64, 256]))]
    # By default the server kills its engine at once, and the recording lacks its last events.
    arguments += ["--shutdown-timeout", "10"]
    return Server(
        "vllm",
        arguments,
        {"VLLM_CPU_KVCACHE_SPACE": "1", "KVSPEC_STUBS": "torchaudio,torchvision._meta_registrations"},
        cumulative=False,
    )


def transformers(seed: int) -> Server:
    """Continuous batching of transformers; the seed draws its page size, memory and scheduler."""
    rng = random.Random(f"{seed} transformers")
    page_size = rng.choice([4, 8, 16])
    # A request has at most 160 tokens, and shares no pages.
    arguments = ["kvlab.serving.batching", "--page-size", str(page_size)]
    arguments += ["--num-blocks", str(rng.choice([256, 512]) // page_size)]
    arguments += ["--max-batch-tokens", str(rng.choice([32, 64, 128]))]
    arguments += ["--max-requests-per-batch", str(rng.choice([4, 8]))]
    arguments += ["--scheduler-type", rng.choice(["fifo", "prefill_first"])]
    arguments += ["--safety-margin", str(rng.choice([0.0, 0.15]))]
    arguments += ["--no-block-sharing"] * (rng.random() < 0.2)
    return Server(
        "transformers",
        arguments,
        controls=(aborting, lambda _: [("/pause", {})]),
    )


SERVERS: dict[str, Callable[[int], Server]] = {
    "sglang": sglang,
    CHECKED_OUT: sglang_jax,
    "vllm": vllm,
    "transformers": transformers,
}
"""Engine -> the function that draws its server from a seed."""
