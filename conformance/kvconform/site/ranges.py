"""An extension for griffe, which reads docstrings for the reference pages.

Tables of ranges stay tables, and the numbers of pull requests in brackets become links.
"""

import re
from typing import Any

from griffe import Extension

from kvconform.site.pages import pull_requests

_SOURCES = re.compile(r"\((\d{3,5}(?:, \d{3,5})*)\)")
_TABLE = re.compile(r"^(?=\[).*(?:\n(?=\[).*)*$", re.MULTILINE)


class RangeTables(Extension):  # type: ignore[misc]  # griffe is there only where the site is built
    """Lines such as `[0, protected)   stays` become a block of code, as they are in the source."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Rewrite one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = with_links(blocks(obj.docstring.value))


def blocks(docstring: str) -> str:
    """The docstring with each table of ranges indented."""
    return _TABLE.sub(lambda table: "\n" + re.sub(r"^", "    ", table[0], flags=re.MULTILINE) + "\n", docstring)


def with_links(docstring: str) -> str:
    """The docstring with links to the source documents that it names by number."""
    return _SOURCES.sub(lambda found: f"({pull_requests(found[1])})", docstring)
