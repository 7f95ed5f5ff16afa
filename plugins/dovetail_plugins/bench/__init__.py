"""Repeatable measurements: an engine alone, or any OpenAI-compatible server under load.

`serve` needs no engine and imports no torch; `latency` and `throughput` load a model themselves.
`compare` compares two results, `startup` shows how a server's start-up time was spent.
"""
