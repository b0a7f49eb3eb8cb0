"""The specification of KV-cache bookkeeping."""

__version__ = "0.2.0"
