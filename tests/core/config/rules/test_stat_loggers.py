"""Where numbers and traces go: addresses, and flags that would do nothing are errors."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.config.config import Config
from dovetail.config.rules.observability.stat_loggers import stat_loggers, traces_url
from dovetail.errors import ConfigError


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ("localhost:4318", "http://localhost:4318/v1/traces"),
        ("http://h:4318/", "http://h:4318/v1/traces"),
        ("https://h", "https://h/v1/traces"),
        ("http://h:1/own/path", "http://h:1/own/path"),
        ("[::1]:4318", "http://[::1]:4318/v1/traces"),
    ],
)
def test_addresses(given: str, url: str) -> None:
    assert traces_url(given) == url


@pytest.mark.parametrize("given", ["grpc://h:4317", "http://", "h:port", "h:70000", ":4318"])
def test_wrong_addresses(given: str) -> None:
    with pytest.raises(ConfigError) as caught:
        traces_url(given)
    assert caught.value.where == "--otlp-traces-endpoint"
    assert caught.value.fix


def test_another_protocol_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "grpc")
    with pytest.raises(ConfigError, match="grpc"):
        traces_url("h:4318")
    monkeypatch.setenv("OTEL_EXPORTER_OTLP_PROTOCOL", "http/protobuf")
    traces_url("h:4318")


def found(**fields: Any) -> dict[str, dict[str, Any]]:
    config = Config.from_fields(fields)
    return stat_loggers(config.observability, config.plugin)


def test_flags_become_receivers() -> None:
    assert found() == {"log": {}, "prometheus": {}}
    assert found(disable_log_stats=True) == {"prometheus": {}}
    hidden = found(show_hidden_metrics_for_version="0.8")
    assert hidden["prometheus"] == {"shows_hidden": True}
    url = "http://h:4318/v1/traces"
    assert found(otlp_traces_endpoint="h:4318")["otlp"] == {"endpoint": url}
    own = {"stat-logger": {"log": {"interval_s": 5}}}
    assert found(plugin_options=own)["log"] == {"interval_s": 5}


@pytest.mark.parametrize(
    ("fields", "where"),
    [
        ({"collect_detailed_traces": ["all"]}, "--collect-detailed-traces"),
        ({"show_hidden_metrics_for_version": "new"}, "--show-hidden-metrics-for-version"),
        (
            {"show_hidden_metrics_for_version": "0.8", "stat_loggers": ["log"]},
            "--show-hidden-metrics-for-version",
        ),
    ],
)
def test_flags_without_effect_are_errors(fields: dict[str, Any], where: str) -> None:
    with pytest.raises(ConfigError) as caught:
        found(**fields)
    assert caught.value.where == where
