"""Measurements a user can repeat: an engine alone, or any OpenAI-compatible server under load.

`serve` needs no engine and imports no torch; `latency` and `throughput` load a model themselves.
`compare` puts two results side by side, `startup` tells what a server's start was spent on.
"""
