"""Whose content SGLang's requests have, as the hooks see it: by the client's message, and not by the engine's key."""

from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from kvattach.hooks import Hooks
from kvattach.sglang.origins import Origins
from kvlab.drives import CheckedTrace


class Req:
    """A request whose key is what the engine makes of its message: here, nothing."""

    def __init__(self, rid: str, *, extra_key: str | None = None, lora_id: str | None = None) -> None:
        self.rid, self.extra_key = rid, None


class Scheduler:
    """Makes requests of messages, loads adapters, and flushes its cache if nothing runs."""

    runs = False

    def handle_generate_request(self, message: Any) -> Req:
        return Req(message.rid)

    def load_lora_adapter(self, message: Any) -> str:
        return f"{message.lora_path} is loaded"

    def flush_cache(self) -> bool:
        return not self.runs


class Updater:
    """Flushes the cache of its scheduler after the weights were replaced."""

    scheduler = Scheduler()

    def flush_cache_after_weight_update(self, message: Any, success: bool, words: str) -> tuple[bool, str]:
        return not message.flush_cache or self.scheduler.flush_cache(), words


@pytest.fixture
def origins() -> Iterator[Origins]:
    batches, scheduler = SimpleNamespace(Req=Req), SimpleNamespace(Scheduler=Scheduler)
    release: Any = SimpleNamespace(batches=batches, scheduled=True, scheduler=scheduler, weight_updater=Updater)
    hooks = Hooks(CheckedTrace())
    yield Origins(release, hooks)
    assert hooks.problem is None
    hooks.detach()


def asked(**fields: Any) -> Req:
    named = {"extra_key": None, "cache_salt": None, "lora_id": None} | fields
    return Scheduler().handle_generate_request(SimpleNamespace(rid="r", **named))


def test_a_request_is_named_by_its_message_though_the_engine_drops_it(origins: Origins) -> None:
    fields: list[dict[str, str]] = [{}, {"extra_key": "a"}, {"cache_salt": "a"}, {"lora_id": "a"}, {"lora_id": "b"}]
    labels = [origins.whose(asked(**one)) for one in fields]
    assert labels[0] == "" and len(set(labels)) == len(labels)
    assert origins.whose(asked(extra_key="a")) == labels[1]


def test_a_request_without_a_message_is_named_by_its_own_arguments(origins: Origins) -> None:
    assert origins.whose(Req("r", extra_key="a")) == origins.whose(asked(extra_key="a")) != ""
    assert origins.whose(Req("r")) == ""


def test_an_adapter_that_is_loaded_again_has_other_weights(origins: Origins) -> None:
    labels = []
    for path in ("/a", "/b", "/a"):
        Scheduler().load_lora_adapter(SimpleNamespace(lora_id="same", lora_path=path))
        labels.append(origins.whose(asked(lora_id="same")))
    assert len(set(labels)) == 3


def test_new_weights_are_others_once_the_cache_was_flushed(origins: Origins) -> None:
    updater, scheduler, before = Updater(), Updater.scheduler, origins.whose(asked())

    def update(*, flush: bool) -> None:
        updater.flush_cache_after_weight_update(SimpleNamespace(flush_cache=flush), True, "")

    scheduler.flush_cache()
    assert origins.whose(asked()) == before, "the same weights compute the same"
    update(flush=False)
    scheduler.runs = True
    update(flush=True)
    assert origins.whose(asked()) == before, "who keeps the cache wants what is in it"
    scheduler.runs = False
    scheduler.flush_cache()
    first = origins.whose(asked())
    update(flush=True)
    assert len({before, first, origins.whose(asked())}) == 3
