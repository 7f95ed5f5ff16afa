"""`dovetail bench`: measurements of a batch, an engine, a running server; results compared."""

from __future__ import annotations

HELP = "measure latency, throughput or a running server"

PARTS = {
    "latency": "dovetail.bench.latency",
    "throughput": "dovetail.bench.throughput",
    "serve": "dovetail.bench.serve",
    "compare": "dovetail.bench.compare",
    "startup": "dovetail.bench.startup",
}
"""Subcommand -> the module that is it."""
