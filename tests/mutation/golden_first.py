"""The conftest.py of a mutation run, which stops at the first failure: the test that notices most goes first."""

import pytest


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """The other tests stay in their order."""
    items.sort(key=lambda item: "test_findings" not in item.nodeid)
