"""Makes a drafter for a tiny model, some of whose drafts are right.

    python -m kvlab.drafters model|eagle MODEL FOLDER

It runs in the environment of a server, which has torch and transformers.
"""

import importlib
import sys
from pathlib import Path
from typing import Any

NOISE = 0.02
"""The noise in the weights of a drafter that is a model, in standard deviations of a weight matrix."""


def noisy(model: Any) -> Any:
    """The model with noise in its weights: it often has another opinion of the next token."""
    torch = importlib.import_module("torch")
    torch.manual_seed(0)
    with torch.no_grad():
        for weight in model.parameters():
            if weight.dim() == 2:
                weight.add_(torch.randn_like(weight), alpha=NOISE * float(weight.std()))
    return model


def eagle(model: Any) -> dict[str, Any]:
    """The weights of an EAGLE head with the layers of a Llama, by their names.

    Such a head has no norm before its first layer. It gets embeddings of one length in place of it, and the scale of
    the norm in the weights behind it. Of the model's hidden states it takes nothing.
    """
    torch = importlib.import_module("torch")
    with torch.no_grad():
        embeddings = model.model.embed_tokens.weight
        lengths = embeddings.square().mean(dim=1, keepdim=True).sqrt()
        scale = lengths.mean()
        identity = torch.eye(embeddings.shape[1])
        weights = {
            "embed_tokens.weight": embeddings / lengths * scale,
            "fc.weight": torch.cat([identity, torch.zeros_like(identity)], dim=1),
        }
        for name, weight in model.model.layers.state_dict().items():
            if name == "0.input_layernorm.weight":
                continue
            first = name in ("0.self_attn.q_proj.weight", "0.self_attn.k_proj.weight", "0.self_attn.v_proj.weight")
            weights[f"layers.{name}"] = weight / scale if first else weight
    return weights


def main() -> None:
    """Write a drafter of a kind for a model into a folder."""
    kind, source, folder = sys.argv[1:]
    torch, transformers = importlib.import_module("torch"), importlib.import_module("transformers")
    model = transformers.AutoModelForCausalLM.from_pretrained(source, dtype=torch.float32)
    if kind == "model":
        noisy(model).save_pretrained(folder)
    else:
        model.config.save_pretrained(folder)
        importlib.import_module("safetensors.torch").save_file(eagle(model), Path(folder) / "model.safetensors")


if __name__ == "__main__":
    main()
