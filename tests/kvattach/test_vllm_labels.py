"""vLLM's labels: the tokens, the adapter's weights, and the salt, whatever the engine's key has of these."""

from types import SimpleNamespace
from typing import Any

from kvattach.vllm.residency import Group, Run

PAGES = Group(0, 4, 0, False, 4)


def label(*images: Any, page: int = 0, **of: Any) -> str:
    """The label of a page of a request, whose tokens are the same in each."""
    request = SimpleNamespace(_all_token_ids=[1, 2, 3, 4] * 2, mm_features=images, **of)
    return Run("r1.1", request, [PAGES]).label(PAGES, page)


def image(data: bytes | None, start: int, hashed: str = "engine's") -> Any:
    place = SimpleNamespace(offset=start, length=3)
    return SimpleNamespace(data=data, identifier=hashed, mm_position=place)


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


def test_an_image_is_named_by_its_data_and_its_place_and_not_by_the_engines_hash() -> None:
    cat = label(image(b"cat", 0))
    assert cat == label(image(b"cat", 0, "another"))
    assert len({label(), cat, label(image(b"dog", 0)), label(image(b"cat", 1)), label(image(None, 0))}) == 5
    assert label(image(None, 0)) != label(image(None, 0, "another")), "all that is known of it"


def test_an_image_is_in_the_pages_of_its_placeholders_and_in_those_behind_them() -> None:
    across, behind = label(image(b"cat", 2)), label(image(b"cat", 5))
    assert across != label() == behind
    assert len({label(page=1), label(image(b"cat", 2), page=1), label(image(b"cat", 5), page=1)}) == 3
    both = label(image(b"cat", 0), image(b"dog", 3), page=1)
    assert both != label(image(b"dog", 0), image(b"cat", 3), page=1)


def test_labels_of_one_text_differ_in_what_is_behind_its_tokens_alone() -> None:
    labels = [label(), label(image(b"cat", 0)), label(image(b"dog", 0), cache_salt="a"), label(cache_salt="a")]
    assert len({one.partition("~")[0] for one in labels}) == 1
    assert len({one.split("~")[-1] for one in labels}) == 4
