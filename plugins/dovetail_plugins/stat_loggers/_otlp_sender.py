"""Sends spans to a collector: OpenTelemetry's own batching and exporter, made quiet and bounded.

The spans of a request are made when it has ended, with the times at which things happened; they are
sent by a thread of the SDK. Reads OpenTelemetry's own variables (OTEL_*) for all that no option
says.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections.abc import Collection, Sequence

from opentelemetry.context import Context
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

from dovetail.interfaces.stats import Caller, RequestStats
from dovetail.version import __version__
from dovetail_plugins.stat_loggers import _otlp_spans as spans

logger = logging.getLogger("dovetail.traces")
CLOSE_WAIT_S = 3.0
LOST_WAIT_S = 0.3
"""How long the end waits for a collector that is slow, and for one that cannot be reached."""


class Sender:
    """Sends the spans of finished requests to one collector."""

    def __init__(self, url: str, model: str, detail: Collection[str]) -> None:
        self._model = model
        self._detail = detail
        self._exporter = _Exporter(url)
        self._provider = TracerProvider(resource=_resource(), shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(self._exporter))
        self._tracer = self._provider.get_tracer("dovetail", __version__)
        self._propagator = TraceContextTextMapPropagator()

    def send(self, stats: RequestStats) -> None:
        """Queue the spans of a request; a full queue drops them. Returns immediately."""
        times = stats.times
        offset_ns = time.time_ns() - time.monotonic_ns()
        span = self._tracer.start_span(
            f"{spans.operation_of(stats)} {self._model}",
            context=self._parent(stats.caller),
            kind=SpanKind.SERVER,
            attributes=spans.attributes_of(stats, self._model, self._detail),
            start_time=_ns(times.arrival_s, offset_ns),
        )
        if span.is_recording():  # the caller, or a sampler, may not want it
            inside = set_span_in_context(span, Context())
            for phase in spans.phases_of(times):
                child = self._tracer.start_span(
                    phase.name, context=inside, start_time=_ns(phase.start_s, offset_ns)
                )
                child.end(_ns(phase.end_s, offset_ns))
            problem = spans.problem_of(stats)
            if problem is not None:
                span.set_status(Status(StatusCode.ERROR, problem))
        span.end(_ns(times.ended_s, offset_ns))

    def _parent(self, caller: Caller | None) -> Context:
        if caller is None or not caller.traceparent:
            return Context()
        carrier = {"traceparent": caller.traceparent, "tracestate": caller.tracestate}
        return self._propagator.extract(carrier, context=Context())

    def close(self) -> None:
        """Send the rest, for a few seconds at most. May be called twice."""
        ending = threading.Thread(target=self._provider.shutdown, daemon=True)
        ending.start()
        deadline_s = time.monotonic() + CLOSE_WAIT_S
        while ending.is_alive() and time.monotonic() < deadline_s:
            ending.join(LOST_WAIT_S)
            if self._exporter.is_in_trouble:
                break
        self._exporter.shutdown()  # ends a running retry
        ending.join(LOST_WAIT_S)


class _Exporter(SpanExporter):
    """The OTLP exporter with one warning when the collector is lost, one line when it is back."""

    def __init__(self, url: str) -> None:
        self.is_lost = False
        self._url = url
        self._is_shut_down = False
        self._complaints = _complaints()
        self._exporter = OTLPSpanExporter(endpoint=url or None)

    @property
    def is_in_trouble(self) -> bool:
        """Return whether the last batch failed, or the current one is being retried."""
        return self.is_lost or bool(self._complaints.first)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        """Send a batch; called by the SDK's thread."""
        self._complaints.first = ""
        result = self._exporter.export(spans)
        is_lost = result is not SpanExportResult.SUCCESS
        if is_lost and not self.is_lost:
            reason = self._complaints.first or "no reason given"
            logger.warning("traces do not reach the collector %s: %s", self._url, reason)
        elif self.is_lost and not is_lost:
            logger.info("traces reach the collector %s again", self._url)
        self.is_lost = is_lost
        return result

    def shutdown(self) -> None:
        """End a running retry and send nothing more. May be called twice."""
        if not self._is_shut_down:
            self._is_shut_down = True
            self._exporter.shutdown()


class _Complaints(logging.Handler):
    """A handler of OpenTelemetry's log: keeps the first complaint, and logs every line at level
    debug."""

    def __init__(self) -> None:
        super().__init__()
        self.first = ""

    def emit(self, record: logging.LogRecord) -> None:
        """Take a line."""
        if record.levelno >= logging.WARNING:
            self.first = self.first or record.getMessage()
        logger.debug("%s: %s", record.name, record.getMessage())


def _complaints() -> _Complaints:
    """Return the handler of OpenTelemetry's log. Mutates: the logger "opentelemetry", once"""
    root = logging.getLogger("opentelemetry")
    for handler in root.handlers:
        if isinstance(handler, _Complaints):
            return handler
    complaints = _Complaints()
    root.addHandler(complaints)
    root.propagate = False
    return complaints


def _resource() -> Resource:
    """Return who sends: "dovetail", unless OpenTelemetry's variables say another name."""
    facts: dict[str, str | int] = {"service.version": __version__, "process.pid": os.getpid()}
    attributes = os.environ.get("OTEL_RESOURCE_ATTRIBUTES", "")
    if "OTEL_SERVICE_NAME" not in os.environ and "service.name=" not in attributes:
        facts["service.name"] = "dovetail"
    return Resource.create(facts)


def _ns(seconds: float, offset_ns: int) -> int:
    return int(seconds * 1e9) + offset_ns
