"""The specification of KV-cache bookkeeping."""
