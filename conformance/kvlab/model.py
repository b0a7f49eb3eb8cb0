"""Makes a tiny model whose greedy answers depend on what the KV cache holds, and checks answers without a cache.

    python -m kvlab.model make FOLDER HEAD_DIM WINDOW STATES
    python -m kvlab.model check FOLDER < answers.jsonl > differences.jsonl

It runs in the environment of a server, which has torch and transformers.
"""

import importlib
import sys
from typing import Any

import msgspec

VOCABULARY = 508
"""Token ids below this are words; the four ids from here on are special."""

TIE = 1e-3
"""Two logits that differ by less are a tie: with another order of the same sums the other token may win."""


class Answer(msgspec.Struct):
    """The prompt and the answer of one request, in token ids."""

    rid: str
    prompt: list[int]
    output: list[int]
    """The answer, as far as it was delivered."""
    asked: int = 0
    """The number of tokens that the request asked for; 0 if it was aborted, and any number may be delivered."""


class Difference(msgspec.Struct):
    """The first token of an answer that a pass without a cache would not have given."""

    rid: str
    position: int
    """Its position in prompt and answer, in tokens."""
    expected: int
    found: int
    gap: float
    """The difference between the two logits."""


def sharp_model(head_dim: int = 64, window: int = 0, states: int = 0) -> Any:
    """A Llama of two layers, on the GPU if there is one.

    With a window, in tokens, it is a Mellum whose first layer has it; with states an LFM2 whose first layer convolves.
    Its attention is made sharp: with the usual initialisation a greedy token hardly depends on what is cached.
    """
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    torch.manual_seed(0)
    shape: dict[str, Any] = {
        "vocab_size": VOCABULARY + 4,
        "hidden_size": 64,
        "intermediate_size": 128,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "num_key_value_heads": 2,
        "head_dim": head_dim,
        "max_position_embeddings": 4096,
        "bos_token_id": VOCABULARY,
        "eos_token_id": VOCABULARY + 1,
        "pad_token_id": VOCABULARY + 2,
        "dtype": "float32",
    }
    if states:
        shape |= {"hidden_size": 4 * shape.pop("head_dim"), "layer_types": ["conv", "full_attention"]}
        shape |= {"tie_word_embeddings": False, "block_auto_adjust_ff_dim": False}
        model = transformers.Lfm2ForCausalLM(transformers.Lfm2Config(**shape)).float()
    elif window:
        layers = {"layer_types": ["sliding_attention", "full_attention"], "mlp_layer_types": ["dense", "dense"]}
        config = transformers.MellumConfig(**shape, **layers, sliding_window=window)
        model = transformers.MellumForCausalLM(config).float()
    else:
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**shape)).float()
    with torch.no_grad():
        for name, weight in model.named_parameters():
            if weight.dim() == 2:
                sharp = "q_proj" in name or "k_proj" in name
                weight.normal_(0, (2.0 if sharp else 1.2) / weight.shape[1] ** 0.5)
            elif weight.dim() == 3:
                weight.normal_(0, 1.0)
            elif "q_norm" in name or "q_layernorm" in name:
                weight.fill_(4.0)
    return model.cuda() if torch.cuda.is_available() else model


def make(folder: str, head_dim: int, window: int, states: int) -> None:
    """Write the model and a tokenizer of one word a token into a folder."""
    transformers, tokenizers = importlib.import_module("transformers"), importlib.import_module("tokenizers")
    sharp_model(head_dim, window, states).save_pretrained(folder)
    specials = ["<s>", "</s>", "<pad>", "<unk>"]
    words = [*(f"t{number}" for number in range(VOCABULARY)), *specials]
    vocabulary = {word: number for number, word in enumerate(words)}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.WordLevel(vocabulary, unk_token="<unk>"))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.WhitespaceSplit()
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", pad_token="<pad>", unk_token="<unk>"
    ).save_pretrained(folder)


def differences(model: Any, answers: list[Answer]) -> list[Difference]:
    """The answers with a token that one pass over prompt and answer would not have given. A tie is no difference."""
    torch = importlib.import_module("torch")
    found = []
    for answer in answers:
        if not answer.output:
            continue
        tokens = torch.tensor([answer.prompt + answer.output], device=model.device)
        with torch.no_grad():
            logits = model(tokens, use_cache=False).logits[0][len(answer.prompt) - 1 : -1]
        difference = _first(answer, logits)
        if difference is not None:
            found.append(difference)
    return found


def _first(answer: Answer, logits: Any) -> Difference | None:
    for index, (expected, token) in enumerate(zip(logits.argmax(-1).tolist(), answer.output, strict=True)):
        if expected != token:
            gap = float(logits[index][expected] - logits[index][token])
            # After a tie the answer may go on from the other token: its rest proves nothing.
            return None if gap < TIE else Difference(answer.rid, len(answer.prompt) + index, expected, token, gap)
    return None


def main() -> None:
    """Make a model, or check the answers on standard input."""
    command, folder, *sizes = sys.argv[1:]
    if command == "make":
        make(folder, *map(int, sizes))
        return
    read = msgspec.json.Decoder(Answer)
    answers = [read.decode(line) for line in sys.stdin.buffer if line.strip()]
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    for difference in differences(model, answers):
        sys.stdout.buffer.write(msgspec.json.encode(difference) + b"\n")


if __name__ == "__main__":
    main()
