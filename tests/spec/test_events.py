"""The names that an import of all of the module of events brings."""

import kvspec.events


def test_all_of_the_module_is_events_answers_and_what_they_are_made_of() -> None:
    names: dict[str, object] = {}
    exec("from kvspec.events import *", names)
    del names["__builtins__"]
    assert {"Config", "Submit", "MatchAnswer", "Refusal", "Snapshot", "Event"} <= names.keys()
    assert not {"msgspec", "Literal", "Generic", "TypeVar", "Protocol", "A"} & names.keys()
    assert all(hasattr(kvspec.events, name) for name in names)
