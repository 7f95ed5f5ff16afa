"""Stat loggers that receive the engine's statistics, with options: log line, metrics, traces.

Knows the names of dovetail's own stat loggers, since some flags concern only them.
"""

from __future__ import annotations

import os
import re
from typing import Any
from urllib.parse import urlsplit

from dovetail import registry
from dovetail.config.sections.observability import ObservabilityConfig
from dovetail.config.sections.plugin import PluginConfig
from dovetail.errors import ConfigError

LOG, METRICS, TRACES = "log", "prometheus", "otlp"
TRACES_PATH = "/v1/traces"
PROTOCOL = "http/protobuf"
PROTOCOL_VARIABLES = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
TRACES_FLAG = "--otlp-traces-endpoint"
_VERSION = re.compile(r"\d+\.\d+(\.\d+)?")


def stat_loggers(
    observability: ObservabilityConfig, plugins: PluginConfig
) -> dict[str, dict[str, Any]]:
    """Return name -> options of every stat logger. Raises: ConfigError"""
    names = [
        n for n in observability.stat_loggers if not (n == LOG and observability.disable_log_stats)
    ]
    if observability.otlp_traces_endpoint:
        names.append(TRACES)
    given = plugins.options_of("stat_logger")
    options = {name: dict(given.get(name) or {}) for name in names}
    if observability.show_hidden_metrics_for_version:
        _receiver(options, METRICS, "--show-hidden-metrics-for-version")["shows_hidden"] = True
        _check_version(observability.show_hidden_metrics_for_version)
    if observability.otlp_traces_endpoint:
        options[TRACES]["endpoint"] = traces_url(observability.otlp_traces_endpoint)
    if observability.collect_detailed_traces:
        detail = _receiver(options, TRACES, "--collect-detailed-traces")
        detail["detail"] = sorted(trace_parts(observability))
    return options


def trace_parts(observability: ObservabilityConfig) -> set[str]:
    """Return the parts that are timed for every request: "model", "worker"."""
    names = observability.collect_detailed_traces
    values = (registry.admin.value_of("trace_module", name) for name in names)
    return {part for parts in values for part in parts}


def traces_url(endpoint: str) -> str:
    """Return the URL to send spans to, for "host:port" or a URL. Raises: ConfigError"""
    _check_protocol()
    text = endpoint if "://" in endpoint else f"http://{endpoint}"
    try:
        url = urlsplit(text)
        is_complete = bool(url.hostname) and (url.port is None or url.port > 0)
    except ValueError:
        is_complete = False
    if not is_complete:
        raise ConfigError(
            f"{endpoint!r} is not an address.", where=TRACES_FLAG, fix="write host:port, or a URL."
        )
    if url.scheme not in ("http", "https"):
        raise ConfigError(
            f"spans are sent by {PROTOCOL}, not by {url.scheme}.",
            where=TRACES_FLAG,
            fix="name the collector's HTTP port, as a rule http://HOST:4318.",
        )
    path = TRACES_PATH if url.path in ("", "/") else url.path
    return url._replace(path=path).geturl()


def _check_protocol() -> None:
    for name in PROTOCOL_VARIABLES:
        protocol = os.environ.get(name)
        if protocol and protocol != PROTOCOL:
            raise ConfigError(
                f"asks for {protocol}, but spans are sent by {PROTOCOL}.",
                where=name,
                fix=f"unset it, and name the collector's HTTP port with {TRACES_FLAG}.",
            )


def _receiver(options: dict[str, dict[str, Any]], name: str, where: str) -> dict[str, Any]:
    """Return the options of a stat logger that a flag concerns. Raises: ConfigError without it."""
    if name in options:
        return options[name]
    fix = f"add {TRACES_FLAG}." if name == TRACES else f"add {name} to --stat-loggers."
    raise ConfigError(f'the stat logger "{name}" is not in use.', where=where, fix=fix)


def _check_version(text: str) -> None:
    """Raise ConfigError unless the text is a version.

    All hidden metrics were hidden in the same version, so any version shows all of them.
    """
    if _VERSION.fullmatch(text) is None:
        raise ConfigError(
            f"{text!r} is not a version.",
            where="--show-hidden-metrics-for-version",
            fix="write it as X.Y.",
        )
