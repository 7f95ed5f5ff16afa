"""Measurements a user can repeat: an engine alone, or any OpenAI-compatible server under load.

`serve` needs no engine and imports no torch; `latency` and `throughput` load a model themselves.
"""
