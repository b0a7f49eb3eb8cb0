"""The specification of KV-cache bookkeeping."""

__version__ = "0.1.0"
