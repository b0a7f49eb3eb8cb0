"""Events of a device whose functions can be observed.

torch's events are objects of a C++ class, which cannot be changed. The modules of an engine that are observed get a
subclass of it instead, under the same name. All others keep the class, torch and its compiler among them.

One function of C++ takes no subclass: `elapsed_time`. Events that measure time stay as they are, unobserved.
"""

from functools import partial
from types import ModuleType
from typing import Any


def observable(event: type[Any]) -> type[Any]:
    """A subclass of a class of events, whose functions can be replaced; they are still those of that class."""

    def new(kind: type[Any], *args: Any, **options: Any) -> Any:
        if options.get("enable_timing"):
            return event(*args, **options)
        return event.__new__(kind, *args, **options)

    own = {"__new__": new, "__slots__": ("kvspec_recorded",), "__module__": event.__module__}
    return type(event.__name__, (event,), own)


def with_events(torch: ModuleType, event: type[Any]) -> ModuleType:
    """A module with everything that torch has, now and later, but with another class of events."""
    made = ModuleType(torch.__name__, torch.__doc__)
    vars(made).update(Event=event, __getattr__=partial(getattr, torch))
    return made
