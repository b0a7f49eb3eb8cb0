"""vLLM's labels: the tokens, the adapter's weights, and the salt, whatever the engine's key has of these."""

from types import SimpleNamespace
from typing import Any

from kvattach.vllm.residency import Group, Run

PAGES = Group(0, 4, 0, False, 4)


def label(**of: Any) -> str:
    """The label of the first page of a request."""
    request = SimpleNamespace(_all_token_ids=[1, 2, 3, 4], mm_features=(), **of)
    return Run("r1.1", request, [PAGES]).label(PAGES, 0)


def adapter(name: str, number: int, path: str) -> Any:
    return SimpleNamespace(lora_name=name, lora_int_id=number, lora_path=path)


def test_equal_tokens_have_one_label() -> None:
    assert label() == label(lora_request=None, cache_salt=None) == label(cache_salt="")


def test_weights_name_content_and_names_do_not() -> None:
    first = label(lora_request=adapter("a", 1, "/weights/1"))
    assert first == label(lora_request=adapter("b", 2, "/weights/1"))
    assert first != label(lora_request=adapter("a", 1, "/weights/2"))
    assert first != label()


def test_a_salt_names_whom_content_is_for() -> None:
    salted = label(cache_salt="a")
    assert salted != label()
    assert salted != label(cache_salt="b")
    assert salted != label(lora_request=adapter("a", 1, "a"))


def test_the_end_of_a_label_shows_that_it_is_of_an_adapter_or_a_salt() -> None:
    assert "~" not in label()
    assert label(cache_salt="a").partition("~")[2] != label(cache_salt="b").partition("~")[2]
