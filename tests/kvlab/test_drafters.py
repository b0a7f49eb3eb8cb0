"""The drafters of the tiny model: some of their drafts are right, and some are wrong."""

import copy
from typing import Any

import pytest

from kvlab.drafters import eagle, noisy
from kvlab.model import VOCABULARY, sharp_model

torch = pytest.importorskip("torch")
pytest.importorskip("transformers")


PROMPTS = [[(7 * number + 31 * place * place) % VOCABULARY for place in range(40)] for number in range(6)]


@pytest.fixture(scope="module")
def model() -> Any:
    return sharp_model().cpu().eval()


def _next(model: Any, tokens: list[int]) -> list[int]:
    with torch.no_grad():
        found: list[int] = model(torch.tensor([tokens]), use_cache=False).logits[0].argmax(-1).tolist()
    return found


def _right(model: Any, drafter: Any, *, first: int) -> float:
    """The share of right drafts; the drafter sees the tokens from `first` on."""
    pairs = [
        pair
        for prompt in PROMPTS
        for pair in zip(_next(model, prompt)[first:], _next(drafter, prompt[first:]), strict=True)
    ]
    return sum(token == draft for token, draft in pairs) / len(pairs)


def test_a_model_with_noise_is_right_at_times(model: Any) -> None:
    assert 0.3 < _right(model, noisy(copy.deepcopy(model)), first=0) < 0.95
    assert _right(model, model, first=0) == 1.0


def test_a_head_is_right_at_times(model: Any) -> None:
    """An EAGLE head has no norm before its first layer, and none behind the last; the first token is left out."""
    head, weights = copy.deepcopy(model), eagle(model)
    joined = weights.pop("fc.weight")
    embeddings = torch.rand(5, joined.shape[0])
    assert torch.equal(torch.cat([embeddings, torch.rand_like(embeddings)], dim=1) @ joined.T, embeddings)
    head.model.layers[0].input_layernorm = head.model.norm = torch.nn.Identity()
    left = head.model.load_state_dict(weights, strict=False)
    assert not left.missing_keys and not left.unexpected_keys
    assert 0.3 < _right(model, head, first=1) < 0.95
