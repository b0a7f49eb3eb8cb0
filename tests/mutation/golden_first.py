"""The conftest.py of a mutation run, which stops at the first failure: the test that notices most goes first."""

import gc
import re

import pytest


def pytest_sessionstart() -> None:
    """Every mutant has a process of its own: what was there before is no garbage, and looking for some copies it."""
    gc.freeze()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The other tests stay in their order."""
    items.sort(key=lambda item: not re.search(r"/test_(findings|vectors)\.py::", item.nodeid))
