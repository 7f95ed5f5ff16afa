"""OpenTelemetry traces: a server span per request, with queue, prefill and decode below it.

Chosen by --otlp-traces-endpoint. Nothing of OpenTelemetry is imported before a logger is made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Literal

from dovetail.interfaces.plugin import Info
from dovetail.interfaces.stats import RequestStats, StatLogger, StepStats


@dataclass(frozen=True, kw_only=True)
class _Options:
    endpoint: str = field(
        default="",
        metadata={"help": "where spans are sent; empty: as OTEL_EXPORTER_OTLP_ENDPOINT says"},
    )
    detail: tuple[Literal["model", "worker"], ...] = field(
        default=(), metadata={"help": "parts that are traced in detail; --collect-detailed-traces"}
    )


class OtlpTraces(StatLogger):
    """Spans continue the caller's trace if the request has a W3C traceparent."""

    info = Info(
        summary="OpenTelemetry spans of every request, sent by OTLP over HTTP",
        source="https://opentelemetry.io/docs/specs/semconv/gen-ai/",
        requires=("opentelemetry.sdk", "opentelemetry.exporter.otlp.proto.http"),
        extra="tracing",
    )
    capabilities = frozenset({"offline"})
    Options = _Options

    def __init__(self, options: Any, model_name: str, max_model_tokens: int) -> None:
        from dovetail_plugins.stat_loggers._otlp_sender import Sender

        self._sender = Sender(options.endpoint, model_name, options.detail)

    def step(self, stats: StepStats) -> None:
        """Ignore steps: spans are per request."""

    def request(self, stats: RequestStats) -> None:
        """Queue the spans of a finished request."""
        self._sender.send(stats)

    def close(self) -> None:
        """Send the rest."""
        self._sender.close()
