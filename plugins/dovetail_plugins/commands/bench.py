"""`dovetail bench`: measures a batch, an engine or a running server, and compares results."""

from __future__ import annotations

from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info


class BenchCommand(Command):
    """`dovetail bench`."""

    info = Info(summary="measure latency, throughput or a running server")
    parts = {
        "latency": "dovetail_plugins.bench.latency:BenchLatencyCommand",
        "throughput": "dovetail_plugins.bench.throughput:BenchThroughputCommand",
        "serve": "dovetail_plugins.bench.serve:BenchServeCommand",
        "compare": "dovetail_plugins.bench.compare:BenchCompareCommand",
        "startup": "dovetail_plugins.bench.startup:BenchStartupCommand",
    }
