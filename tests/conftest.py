"""The settings that every test needs before it imports anything of kvspec.

Whether contracts are checked is decided once, while kvspec is imported: a contract that is off is never
attached to its function, so that it costs nothing. Tests must see them on. pytest loads this file before it
imports any test module, in each xdist worker too, so this is the place to say so. Processes that a test
starts run without, as those of users do. A value set by the caller stands, for instance `KVSPEC_CONTRACTS=0`
to time the tests without.

Hypothesis profiles: `ci` draws the same examples on every run, so that a red build stays red, and is taken
where `CI` is set; `dev` draws new ones each time. `pytest --hypothesis-profile=NAME` picks one by hand.
Neither has a deadline: a busy machine is not a failure.
"""

import importlib
import logging
import os
from collections.abc import Iterator

import pytest
from hypothesis import settings

from tests.contracts import quick

if "KVSPEC_CONTRACTS" not in os.environ:
    os.environ["KVSPEC_CONTRACTS"] = "1"
    contracts = importlib.import_module("kvspec.contracts")  # which looks at it now, and never again
    del os.environ["KVSPEC_CONTRACTS"]
    vars(contracts).update(require=quick(contracts.require), ensure=quick(contracts.ensure))

settings.register_profile("dev", deadline=None)
settings.register_profile("ci", deadline=None, derandomize=True, print_blob=True)
settings.load_profile("ci" if os.environ.get("CI") else "dev")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Files with the longest tests come first, so that no core waits for one of them at the end.

    A file stays together: what its tests share is made once, not by each worker.
    """
    long = {item.path for item in items if item.get_closest_marker("long") is not None}
    items.sort(key=lambda item: item.path not in long)


@pytest.fixture(autouse=True)
def _logging_is_on() -> Iterator[None]:
    """A command that drives an engine ends its logging for good; those that a test calls must not do it to the next."""
    yield
    logging.disable(logging.NOTSET)
