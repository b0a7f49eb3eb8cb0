"""Adapters: real engines behind the protocol of `kvconform.protocol`."""
