"""The protocol is the event vocabulary as methods."""

import inspect
import os
from pathlib import Path
from typing import Any, get_args, get_type_hints

import pytest

from kvconform.errors import LoadError
from kvconform.implementations import load
from kvconform.protocol import ANSWERS, CALLS, HybridImplementation, Implementation, perform
from kvref.manager import Manager
from kvspec import events
from kvspec.events import EVENTS, Config, Operation


def arguments(operation: type[Operation[Any]]) -> dict[str, Any]:
    hints = get_type_hints(operation)
    return {name: hints[name] for name in operation.__struct_fields__ if name not in ("obs", "refused")}


def test_every_operation_has_its_call() -> None:
    assert set(CALLS) == set(get_args(EVENTS))


@pytest.mark.parametrize("operation", get_args(EVENTS))
def test_a_method_has_the_name_arguments_and_answer_of_its_operation(operation: type[Operation[Any]]) -> None:
    method = getattr(HybridImplementation, str(operation.__struct_config__.tag))
    hints = get_type_hints(method)
    answer = hints.pop("return")
    assert hints == arguments(operation)
    assert list(inspect.signature(method).parameters)[1:] == list(arguments(operation))
    assert [get_args(base) for base in vars(operation)["__orig_bases__"]] == [(answer,)]
    assert ANSWERS[operation] is answer


def test_an_operation_calls_its_method_with_its_arguments_in_order() -> None:
    class Echo:
        def __getattr__(self, name: str) -> Any:
            return lambda *given: (name, *given)

    implementation: Any = Echo()
    for operation in get_args(EVENTS):
        fields: list[Any] = list(arguments(operation))
        called = perform(implementation, operation(*fields))
        assert called == (operation.__struct_config__.tag, *fields)


def test_the_reference_is_an_implementation() -> None:
    config = Config(page_size=4, num_pages=16, num_rows=2, max_context_len=64)
    implementation: Implementation = Manager(config)
    assert perform(implementation, events.OpenSession("s")) == events.Done()
    assert load("reference") is Manager


def test_a_class_is_found_in_the_working_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "engine_of_this_test.py").write_text("from kvref.manager import Manager\nclass Mine(Manager): pass\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", [folder for folder in __import__("sys").path if folder != os.curdir])
    assert load("engine_of_this_test:Mine")(Config(4, 16, 2, 64)).open_session("s") == events.Done()


def test_a_module_that_fails_is_reported_in_one_line(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "failing_engine_of_this_test.py").write_text("raise SystemExit('no\\nGPU')\n")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.path", list(__import__("sys").path))
    with pytest.raises(LoadError) as error:
        load("failing_engine_of_this_test:Mine")
    assert str(error.value) == (
        "implementation 'failing_engine_of_this_test:Mine' cannot be imported: SystemExit: no GPU"
    )


def test_a_mutant_of_the_gallery_can_be_loaded_by_name() -> None:
    assert load("bug:stale-row-index") is not load("reference")
    with pytest.raises(LoadError, match="no defect 'unknown' in the gallery; 'kvspec bugs' lists them"):
        load("bug:unknown")
