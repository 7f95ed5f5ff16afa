"""Writes dovetail.json beside it: a Grafana dashboard over the metrics of a dovetail server.

`python make_dashboard.py` after a change; a test compares, and looks every metric up.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

TARGET = Path(__file__).with_name("dovetail.json")
SELECTED = '{model_name=~"$model", instance=~"$instance"}'
OF_SERVER = '{instance=~"$instance"}'
"""Labels of metrics that no engine has."""
WIDTH, HEIGHT, PER_ROW = 8, 8, 3


def rate(name: str, by: str = "", labels: str = SELECTED) -> str:
    """Return the increase of a counter a second, summed over what `by` does not name."""
    return (
        f"sum{f' by ({by})' if by else ''} (rate(dovetail:{name}_total{labels}[$__rate_interval]))"
    )


def quantile(name: str, share: float, labels: str = SELECTED) -> str:
    """Return a quantile of a histogram."""
    of = f"rate(dovetail:{name}_bucket{labels}[$__rate_interval])"
    return f"histogram_quantile({share}, sum by (le) ({of}))"


def quantiles(name: str, labels: str = SELECTED) -> dict[str, str]:
    """Return median, 95 % and 99 % of a histogram by their legends."""
    return {f"p{share * 100:g}": quantile(name, share, labels) for share in (0.5, 0.95, 0.99)}


def gauge(name: str, labels: str = SELECTED) -> str:
    """Return a gauge, one series an engine."""
    return f"dovetail:{name}{labels}"


ROWS: dict[str, list[tuple[str, str, dict[str, str]]]] = {
    "How fast it answers": [
        ("Time to first token", "s", quantiles("time_to_first_token_seconds")),
        ("Time between tokens", "s", quantiles("inter_token_latency_seconds")),
        ("Time of whole requests", "s", quantiles("e2e_request_latency_seconds")),
        ("Time in the queue", "s", quantiles("request_queue_time_seconds")),
        ("Time of prefills", "s", quantiles("request_prefill_time_seconds")),
        ("HTTP requests by route (p95)", "s", {
            "{{route}}": "histogram_quantile(0.95, sum by (le, route) "
            f"(rate(dovetail:http_request_duration_seconds_bucket{OF_SERVER}[$__rate_interval])))"
        }),
    ],
    "How much it does": [
        ("Tokens per second", "short", {
            "generated": rate("generation_tokens"),
            "prompts": rate("prompt_tokens"),
            "prompts, from the prefix cache": rate("cached_prompt_tokens"),
        }),
        ("Requests", "short", {
            "running, engine {{engine}}": gauge("num_requests_running"),
            "waiting, engine {{engine}}": gauge("num_requests_waiting"),
        }),
        ("Requests that ended, per second", "reqps", {
            "{{finished_reason}}": rate("request_success", "finished_reason")
        }),
        ("Prompt lengths", "short", quantiles("request_prompt_tokens")),
        ("Answer lengths", "short", quantiles("request_generation_tokens")),
        ("Tokens in a step", "short", quantiles("iteration_tokens_total")),
    ],
    "What it uses": [
        ("KV cache in use", "percentunit", {"engine {{engine}}": gauge("kv_cache_usage_perc")}),
        ("Found in the prefix cache", "percentunit", {
            "share of tokens": f"{rate('prefix_cache_hits')} / {rate('prefix_cache_queries')}"
        }),
        ("Preemptions per second", "short", {
            "recomputed or swapped": rate("num_preemptions"), "swapped": rate("num_swaps"),
        }),
        ("Device and host", "percentunit", {
            "device at work": rate("device_seconds", "engine"),
            "device waits for the host": rate("exposed_host_seconds", "engine"),
        }),
        ("Drafted tokens that were kept", "percentunit", {
            "share": f"{rate('spec_decode_num_accepted_tokens')} "
            f"/ {rate('spec_decode_num_draft_tokens')}"
        }),
        ("Last start", "s", {"{{phase}}": gauge("start_phase_seconds", OF_SERVER)}),
    ],
    "What goes wrong": [
        ("Engines that run", "short", {"engine {{engine}}": gauge("engine_up", OF_SERVER)}),
        ("Requests that failed in the engine, per second", "reqps", {"faults": rate("faults")}),
        ("Refused requests per second", "reqps", {
            "{{kind}} {{status}}": rate("refused_requests", "kind, status", OF_SERVER)
        }),
        ("HTTP answers by status, per second", "reqps", {
            "{{status}}": rate("http_requests", "status", OF_SERVER)
        }),
        ("Clients that left, per second", "reqps", {
            "disconnects": rate("disconnects", "", OF_SERVER)
        }),
        ("Fields without effect, per second", "reqps", {
            "{{field}}": rate("ignored_request_fields", "field", OF_SERVER)
        }),
    ],
}  # fmt: skip
"""Heading of a row -> title, unit and queries by legend of its panels."""


def dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    panels: list[dict[str, Any]] = []
    top = 0
    for heading, row in ROWS.items():
        place = {"x": 0, "y": top, "w": 24, "h": 1}
        row_of = {"type": "row", "id": len(panels) + 1, "title": heading, "gridPos": place}
        panels.append(row_of | {"collapsed": False, "panels": []})
        top += 1
        for i, (title, unit, queries) in enumerate(row):
            x, y = i % PER_ROW * WIDTH, top + i // PER_ROW * HEIGHT
            panels.append(_panel(len(panels) + 1, title, unit, queries, x, y))
        top += -(-len(row) // PER_ROW) * HEIGHT
    return {
        "uid": "dovetail",
        "title": "dovetail",
        "schemaVersion": 39,
        "version": 1,
        "editable": True,
        "refresh": "30s",
        "time": {"from": "now-1h", "to": "now"},
        "tags": ["llm"],
        "templating": {
            "list": [_source(), _variable("instance"), _variable("model", "model_name")]
        },
        "panels": panels,
    }


def _panel(
    number: int, title: str, unit: str, queries: dict[str, str], x: int, y: int
) -> dict[str, Any]:
    source = {"type": "prometheus", "uid": "${source}"}
    targets = [
        {"refId": chr(ord("A") + i), "expr": query, "legendFormat": legend, "datasource": source}
        for i, (legend, query) in enumerate(queries.items())
    ]
    return {
        "type": "timeseries",
        "id": number,
        "title": title,
        "datasource": source,
        "gridPos": {"x": x, "y": y, "w": WIDTH, "h": HEIGHT},
        "fieldConfig": {"defaults": {"unit": unit, "min": 0}, "overrides": []},
        "options": {"tooltip": {"mode": "multi", "sort": "desc"}},
        "targets": targets,
    }


def _source() -> dict[str, Any]:
    return {"type": "datasource", "name": "source", "label": "Data source", "query": "prometheus"}


def _variable(name: str, label: str = "") -> dict[str, Any]:
    """Return a choice among the values of a label."""
    query = f"label_values(dovetail:num_requests_running, {label or name})"
    return {
        "type": "query",
        "name": name,
        "label": name.capitalize(),
        "datasource": {"type": "prometheus", "uid": "${source}"},
        "query": query,
        "refresh": 2,
        "includeAll": True,
        "multi": True,
        "allValue": ".*",
        "current": {"text": "All", "value": "$__all"},
    }


def text() -> str:
    """Return the file's text."""
    return json.dumps(dashboard(), indent=1) + "\n"


if __name__ == "__main__":
    TARGET.write_text(text(), encoding="utf-8")
