"""The process's Prometheus metrics: one registry, declared by name, exposed at /metrics.

A metric that `vllm serve` has too is stored once and exposed under both names, so that dashboards
made for it work. With several API processes the values are merged through files in a private
folder. The parent sets it in the environment before any metric exists (see prometheus_client's
multiprocess mode).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.registry import Collector

FOLDER_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
PREFIX = "dovetail:"
GONE = float("nan")
"""The value of a series that is not exposed: prometheus_client cannot remove one of several
processes."""
_GONE_LINE = re.compile(rb"^[^#\n].* NaN\n", re.MULTILINE)
ALIAS = b"vllm:"
_LINE_START = re.compile(rb"^((?:# (?:HELP|TYPE) )?)" + PREFIX.encode(), re.MULTILINE)

# The _created series double every scrape, are missing from merged metrics, and nobody reads them.
disable_created_metrics()
REGISTRY = CollectorRegistry()
Metric = TypeVar("Metric", Counter, Gauge, Histogram)


@dataclass(frozen=True, slots=True, kw_only=True)
class Declared:
    """A metric family as listed in the docs; with `has_alias` it is exposed under a second name
    too."""

    name: str
    type: str
    help_text: str
    labels: tuple[str, ...]
    has_alias: bool

    @property
    def alias(self) -> str | None:
        """Return the second name, or None."""
        return ALIAS.decode() + self.name.removeprefix(PREFIX) if self.has_alias else None


_declared: dict[str, tuple[Declared, Counter | Gauge | Histogram]] = {}


def counter(
    name: str, help_text: str, labels: Sequence[str] = (), *, has_alias: bool = False
) -> Counter:
    """Return the counter of this name; the first call creates it."""
    facts = _facts(name, "counter", help_text, labels, has_alias)
    return _once(facts, Counter, lambda: Counter(name, help_text, labels, registry=REGISTRY))


def gauge(
    name: str,
    help_text: str,
    labels: Sequence[str] = (),
    *,
    merge: str = "mostrecent",
    has_alias: bool = False,
) -> Gauge:
    """Return the gauge of this name. `merge` is how values of API processes are merged:
    "mostrecent" for numbers of the engine, "livesum" for numbers of a process."""

    def make() -> Gauge:
        return Gauge(name, help_text, labels, registry=REGISTRY, multiprocess_mode=merge)  # type: ignore[arg-type]

    return _once(_facts(name, "gauge", help_text, labels, has_alias), Gauge, make)


def histogram(
    name: str,
    help_text: str,
    buckets: Sequence[float],
    labels: Sequence[str] = (),
    *,
    has_alias: bool = False,
) -> Histogram:
    """Return the histogram of this name."""

    def make() -> Histogram:
        return Histogram(name, help_text, labels, registry=REGISTRY, buckets=tuple(buckets))

    return _once(_facts(name, "histogram", help_text, labels, has_alias), Histogram, make)


def _facts(
    name: str, kind: str, help_text: str, labels: Sequence[str], has_alias: bool
) -> Declared:
    return Declared(
        name=name, type=kind, help_text=help_text, labels=tuple(labels), has_alias=has_alias
    )


def _once(facts: Declared, wanted: type[Metric], make: Callable[[], Metric]) -> Metric:
    if facts.name not in _declared:
        _declared[facts.name] = (facts, make())
    found = _declared[facts.name][1]
    if not isinstance(found, wanted):
        raise TypeError(f"metric {facts.name} is declared as {type(found).__name__}")
    return found


def declared() -> list[Declared]:
    """Return every family declared so far, sorted by name."""
    return [_declared[name][0] for name in sorted(_declared)]


def _has_alias(name: str) -> bool:
    return name in _declared and _declared[name][0].has_alias


class _Families(Collector):
    """A collector of families collected before, in the form that generate_latest takes."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = tuple(families)

    def collect(self) -> Iterable[Family]:
        """Return the families."""
        return self._families


def exposition() -> bytes:
    """Return all metrics as Prometheus text, merged with the metrics of sibling processes.

    A family with a second name is written again under it, with the same numbers.
    """
    families = list(_merged().collect())
    own = generate_latest(_Families(f for f in families if not _has_alias(f.name)))
    shared = generate_latest(_Families(f for f in families if _has_alias(f.name)))
    return _GONE_LINE.sub(b"", own + shared + _LINE_START.sub(rb"\1" + ALIAS, shared))


def _merged() -> CollectorRegistry:
    if FOLDER_VARIABLE not in os.environ:
        return REGISTRY
    merged = CollectorRegistry()
    MultiProcessCollector(merged)  # type: ignore[no-untyped-call]
    return merged


IGNORED_FIELDS = counter(
    "dovetail:ignored_request_fields",
    "Request fields that were accepted and had no effect",
    ("field",),
)
REFUSED_REQUESTS = counter(
    "dovetail:refused_requests",
    "Requests answered with an error, by kind of error",
    ("kind", "status"),
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
TASK_FAILURES = counter(
    "dovetail:task_failures",
    "Failures of long-lived tasks, each of which is started again",
    ("task",),
)
DISCONNECTS = counter("dovetail:disconnects", "Requests whose client left before the end")
OPEN_REQUESTS = gauge(
    "dovetail:open_http_requests", "HTTP requests being answered now", merge="livesum"
)
ENGINE_UP = gauge(
    "dovetail:engine_up",
    "1 while the engine of this number runs, 0 once it has died; not there once it was removed",
    ("engine",),
)
ENGINE_RESTARTING = gauge(
    "dovetail:engine_restarting", "1 while a dead engine is being started again", ("engine",)
)
ENGINE_RESTARTS = counter(
    "dovetail:engine_restarts", "How often an engine was started again", ("engine",)
)
REQUESTS_RUN_AGAIN = counter(
    "dovetail:requests_run_again", "Requests that ran again after their engine had died"
)
START_SECONDS = gauge(
    "dovetail:start_phase_seconds", "Seconds that each phase of the start took", ("phase",)
)
START_BEGAN_SECONDS = gauge(
    "dovetail:start_phase_began_seconds",
    "Seconds from the creation of the process to the beginning of each phase of the start",
    ("phase",),
)
