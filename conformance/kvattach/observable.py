"""Events of a device whose functions can be observed.

torch's events are objects of a C++ class, which cannot be changed. The modules of an engine that are observed get a
subclass of it instead, under the same name. All others keep the class, torch and its compiler among them.

One function of C++ takes no subclass: `elapsed_time`. An event that measures time has a plain one beside it for that.
"""

from functools import partial
from types import ModuleType
from typing import Any


def observable(event: type[Any]) -> type[Any]:
    """A subclass of a class of events, whose functions can be replaced; they are still those of that class."""

    def made(self: Any, *args: Any, **options: Any) -> None:
        if event.__init__ is not object.__init__:  # a class of C++ has none of its own
            event.__init__(self, *args, **options)
        self.kvspec_time = event(*args, **options) if options.get("enable_timing") else None

    def record(self: Any, *on: Any, **named: Any) -> None:
        # First the event beside it: it has happened when this one has.
        if self.kvspec_time is not None:
            self.kvspec_time.record(*on, **named)
        event.record(self, *on, **named)

    def elapsed_time(self: Any, other: Any) -> Any:
        return event.elapsed_time(*(getattr(one, "kvspec_time", None) or one for one in (self, other)))

    own = {"__init__": made, "record": record, "elapsed_time": elapsed_time}
    more = {"__slots__": ("kvspec_recorded", "kvspec_time"), "__module__": event.__module__}
    return type(event.__name__, (event,), own | more)


def with_events(torch: ModuleType, event: type[Any]) -> ModuleType:
    """A module with everything that torch has, now and later, but with another class of events."""
    made = ModuleType(torch.__name__, torch.__doc__)
    vars(made).update(Event=event, __getattr__=partial(getattr, torch))
    return made
