"""`dovetail bench`: measurements of a batch, an engine, a running server; results compared."""

from __future__ import annotations

HELP = "measure latency, throughput or a running server"

PARTS = {
    "latency": "dovetail_plugins.bench.latency",
    "throughput": "dovetail_plugins.bench.throughput",
    "serve": "dovetail_plugins.bench.serve",
    "compare": "dovetail_plugins.bench.compare",
    "startup": "dovetail_plugins.bench.startup",
}
"""Subcommand -> the module that is it."""
