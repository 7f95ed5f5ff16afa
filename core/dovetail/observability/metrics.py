"""The process's Prometheus metrics: one registry, declared by name, shown by /metrics.

With several API processes the numbers are merged through files in a private folder, which the
parent names in the environment before any metric exists (see prometheus_client's multiprocess
mode). Knows no engine.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TypeVar

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector

FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

REGISTRY = CollectorRegistry()
_declared: dict[str, Counter | Gauge | Histogram] = {}

Metric = TypeVar("Metric", Counter, Gauge, Histogram)


def counter(name: str, help_text: str, labels: Sequence[str] = ()) -> Counter:
    """Return the counter of this name, made when it is first asked for."""
    return _once(name, Counter, lambda: Counter(name, help_text, labels, registry=REGISTRY))


def gauge(
    name: str, help_text: str, labels: Sequence[str] = (), *, merge: str = "mostrecent"
) -> Gauge:
    """Return the gauge of this name. `merge` says how the API processes' values are merged:
    "mostrecent" for numbers of the engine, "livesum" for numbers of a process."""
    return _once(
        name,
        Gauge,
        lambda: Gauge(name, help_text, labels, registry=REGISTRY, multiprocess_mode=merge),  # type: ignore[arg-type]
    )


def histogram(
    name: str, help_text: str, buckets: Sequence[float], labels: Sequence[str] = ()
) -> Histogram:
    """Return the histogram of this name."""
    return _once(
        name,
        Histogram,
        lambda: Histogram(name, help_text, labels, registry=REGISTRY, buckets=tuple(buckets)),
    )


def _once(name: str, wanted: type[Metric], make: object) -> Metric:
    found = _declared.get(name)
    if found is None:
        assert callable(make)
        found = _declared[name] = make()
    if not isinstance(found, wanted):
        raise TypeError(f"metric {name} is declared as {type(found).__name__}")
    return found


def exposition() -> bytes:
    """Return all metrics as Prometheus text, those of sibling processes merged in."""
    if FOLDER_VARIABLE not in os.environ:
        return generate_latest(REGISTRY)
    merged = CollectorRegistry()
    MultiProcessCollector(merged)  # type: ignore[no-untyped-call]
    return generate_latest(merged)


IGNORED_FIELDS = counter(
    "dovetail:ignored_request_fields",
    "Request fields that were accepted and had no effect",
    ("field",),
)
REFUSED_REQUESTS = counter(
    "dovetail:refused_requests", "Requests answered with an error, by its kind", ("kind", "status")
)
HTTP_REQUESTS = counter(
    "dovetail:http_requests", "HTTP requests answered", ("method", "route", "status")
)
HTTP_SECONDS = histogram(
    "dovetail:http_request_duration_seconds",
    "Seconds from a request's first byte to its answer's last",
    (0.001, 0.005, 0.01, 0.05, 0.1, 0.5, 1, 5, 10, 30, 60, 300),
    ("route",),
)
DISCONNECTS = counter("dovetail:disconnects", "Requests whose client left before the end")
OPEN_REQUESTS = gauge(
    "dovetail:open_http_requests", "HTTP requests being answered now", merge="livesum"
)
START_SECONDS = gauge(
    "dovetail:start_phase_seconds", "Seconds each phase of the start took", ("phase",)
)
