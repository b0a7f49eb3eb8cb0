"""The reference manager and the reference scheduler."""

from kvref.manager import Manager

__all__ = ["Manager"]
