"""An extension of griffe, which reads docstrings for the reference pages: tables of ranges stay tables."""

import re
from typing import Any

from griffe import Extension

_TABLE = re.compile(r"^(?=\[).*(?:\n(?=\[).*)*$", re.MULTILINE)


class RangeTables(Extension):  # type: ignore[misc]  # griffe is there only where the site is built
    """Lines such as `[0, protected)   stays` become a block of code, as they are in the source."""

    def on_object(self, *, obj: Any, **_: Any) -> None:
        """Look at one docstring."""
        if obj.docstring is not None:
            obj.docstring.value = blocks(obj.docstring.value)


def blocks(docstring: str) -> str:
    """The docstring with each table of ranges indented."""
    return _TABLE.sub(lambda table: "\n" + re.sub(r"^", "    ", table[0], flags=re.MULTILINE) + "\n", docstring)
