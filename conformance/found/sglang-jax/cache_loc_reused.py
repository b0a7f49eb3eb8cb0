"""sglang-jax answers requests with tokens that it gives to none of them alone: `cache-loc-reused`, on a CPU.

    git clone https://github.com/sgl-project/sglang-jax && cd sglang-jax && git checkout cddbf6f1
    PYTHONPATH=python JAX_PLATFORMS=cpu python cache_loc_reused.py

Each batch writes the slots that it reads into one array of the host (`ReqToTokenPool.cache_loc_host_buf`). On a CPU jax
takes an array without a copy if it begins at a multiple of 64 bytes; then the launch in flight reads the slots of the
next batch. Where the array begins is chance. So that the outcome is none, `numpy.zeros` is asked for arrays that begin
at a multiple of 64 bytes, and in another server for such that begin 32 bytes behind one.

Twelve prompts are sent one after the other, and then four at a time. Tokens are greedy, so both must agree.
"""

import json
import os
import socket
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

ZEROS = """
import numpy, os
zeros, begins = numpy.zeros, int(os.environ["ZEROS_BEGIN"])
def placed(shape, dtype=float, *args, **named):
    made = zeros(shape, dtype, *args, **named)
    if args or named or not made.nbytes or made.dtype.hasobject:
        return made
    room = zeros(made.nbytes + 128, numpy.uint8)
    first = -room.ctypes.data % 64 + begins
    return room[first : first + made.nbytes].view(made.dtype).reshape(made.shape)
numpy.zeros = placed
"""
"""Each process of the server runs it first; `ZEROS_BEGIN` is where arrays begin, past a multiple of 64 bytes."""

PROMPTS = [[(7 * number + 13 * at * at) % 500 for at in range(20 + 3 * number)] for number in range(12)]
ANSWER = 24


def make(folder: Path) -> None:
    """A Llama of two layers whose attention is sharp: greedy tokens depend on what the cache holds."""
    import tokenizers
    import torch
    import transformers

    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        vocab_size=512,
        hidden_size=64,
        intermediate_size=128,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=128,
        bos_token_id=508,
        eos_token_id=509,
        pad_token_id=510,
    )
    model = transformers.LlamaForCausalLM(config).float()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2:
                sharp = "q_proj" in name or "k_proj" in name
                weight.normal_(0, (2.0 if sharp else 1.2) / weight.shape[1] ** 0.5)
    model.save_pretrained(folder)
    words = {word: number for number, word in enumerate([*(f"t{i}" for i in range(508)), "<s>", "</s>", "<p>", "<u>"])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="<u>"))
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<p>", unk_token="<u>"
    ).save_pretrained(folder)


def ask(port: int, prompt: list[int]) -> list[int]:
    """The tokens of one answer."""
    sampling = {"temperature": 0, "max_new_tokens": ANSWER, "ignore_eos": True}
    body = json.dumps({"input_ids": prompt, "sampling_params": sampling}).encode()
    request = urllib.request.Request(f"http://127.0.0.1:{port}/generate", body, {"Content-Type": "application/json"})
    with urllib.request.urlopen(request, timeout=300) as answer:
        answered: Any = json.load(answer)
    tokens: list[int] = answered["output_ids"]
    return tokens


def serve(folder: Path, begins: int, *options: str) -> tuple[int, int]:
    """The answers of twelve that are the same four at a time as alone, and how many were asked for."""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    command = [
        sys.executable,
        "-m",
        "sgl_jax.launch_server",
        "--model-path",
        str(folder / "model"),
        "--port",
        str(port),
    ]
    command += ["--device", "cpu", "--attention-backend", "native", "--dtype", "float32", "--page-size", "1"]
    command += ["--max-total-tokens", "512", "--chunked-prefill-size", "64", "--disable-precompile"]
    command += ["--grammar-backend", "none", "--max-running-requests", "8", "--context-length", "512"]
    paths = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    environment = {
        **os.environ,
        "PYTHONPATH": paths,
        "ZEROS_BEGIN": str(begins),
        "JAX_PLATFORMS": "cpu",
        "HF_HUB_OFFLINE": "1",
        "TRANSFORMERS_OFFLINE": "1",
    }
    log = folder / "server.log"
    with log.open("wb") as out:
        server = subprocess.Popen([*command, *options], env=environment, stdout=out, stderr=out, process_group=0)
    try:
        for _ in range(600):
            try:
                urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                break
            except (OSError, urllib.error.URLError):
                if server.poll() is not None:
                    raise SystemExit(f"the server ended: {log.read_text(errors='replace')[-2000:]}") from None
                time.sleep(0.5)
        alone = [ask(port, prompt) for prompt in PROMPTS]
        with ThreadPoolExecutor(4) as four:
            together = list(four.map(lambda prompt: ask(port, prompt), PROMPTS))
    finally:
        os.killpg(server.pid, 9)
        server.wait()
    same = [one == other for one, other in zip(alone, together, strict=True)]
    for number, (one, other) in enumerate(zip(alone, together, strict=True)):
        if one != other:
            at = next(at for at, (a, b) in enumerate(zip(one, other, strict=True)) if a != b)
            print(f"    prompt {number}, token {at}: alone {one[at]}, beside others {other[at]}")
            break
    return sum(same), len(same)


def main() -> None:
    """Start one server after the other, and say how many answers are the same."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        make(folder / "model")
        (folder / "sitecustomize.py").write_text(ZEROS, encoding="utf-8")
        for begins, *options in ((0,), (32,), (0, "--disable-overlap-schedule")):
            same, asked = serve(folder, begins, *options)
            words = " ".join([f"arrays begin at {begins}", *options])
            print(f"{words}: {same} of {asked} answers are the same alone and beside others", flush=True)


if __name__ == "__main__":
    main()
