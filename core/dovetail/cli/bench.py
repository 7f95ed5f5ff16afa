"""`dovetail bench`: one measurement each of a batch, of an engine, of a running server."""

from __future__ import annotations

HELP = "measure latency, throughput or a running server"

PARTS = {
    "latency": "dovetail.bench.latency",
    "throughput": "dovetail.bench.throughput",
    "serve": "dovetail.bench.serve",
}
"""Subcommand -> the module that is it."""
