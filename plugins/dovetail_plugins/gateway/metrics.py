"""The gateway's own metrics, and /metrics, which adds the metrics of every model's server."""

from __future__ import annotations

import re
from collections.abc import Mapping

from dovetail.observability import metrics

OWN = "dovetail:gateway_"
LABEL = "model_name"

LOADS = metrics.counter(
    "dovetail:gateway_loads",
    "Times that a model was loaded or woken up; how: loaded, woken, failed",
    (LABEL, "how"),
)
UNLOADS = metrics.counter(
    "dovetail:gateway_unloads",
    "Times that a model left memory; why: idle, asleep, room (another needed it), died",
    (LABEL, "why"),
)
WAITING = metrics.gauge(
    "dovetail:gateway_requests_waiting",
    "Requests that wait for their model to be loaded or woken up",
    (LABEL,),
    merge="livesum",
)
OPEN = metrics.gauge(
    "dovetail:gateway_requests_running",
    "Requests that a model's server answers now",
    (LABEL,),
    merge="livesum",
)
LOAD_SECONDS = metrics.histogram(
    "dovetail:gateway_load_seconds",
    "Time until a model could be used, by loading it or waking it up",
    (0.1, 0.25, 0.5, 1, 2.5, 5, 10, 25, 50, 100, 250, 500),
    (LABEL,),
)

_HEAD = re.compile(r"# (?:HELP|TYPE) (\S+)")
_SAMPLE = re.compile(r"([A-Za-z_:][\w:]*)(?:\{(.*)\})?( .+)")


class _Family:
    """The lines of one metric family: its HELP and TYPE lines, then its samples."""

    def __init__(self) -> None:
        self.heads: dict[str, str] = {}
        self.samples: list[str] = []


def own_text() -> str:
    """Return the gateway's own metric families."""
    text = metrics.exposition().decode()
    return "\n".join(line for line in text.split("\n") if _family_name(line).startswith(OWN))


def _family_name(line: str) -> str:
    head = _HEAD.match(line) or _SAMPLE.fullmatch(line)
    return head.group(1) if head else ""


def merged(own: str, texts: Mapping[str, str]) -> str:
    """Return one Prometheus text from `own` and the models' texts by name.

    Each family appears once, with the samples of all. Each sample of a model has the label
    model_name.
    """
    families: dict[str, _Family] = {}
    _take(own, families, None)
    for name, text in texts.items():
        _take(text, families, name)
    lines = [
        line for family in families.values() for line in (*family.heads.values(), *family.samples)
    ]
    return "\n".join([*lines, ""])


def _take(text: str, families: dict[str, _Family], model: str | None) -> None:
    """Add the lines of a text to their families. Mutates: families"""
    family = _Family()
    for line in text.split("\n"):
        if head := _HEAD.match(line):
            family = families.setdefault(head.group(1), _Family())
            family.heads.setdefault(line.split(" ", 2)[1], line)
        elif line and not line.startswith("#"):
            family.samples.append(line if model is None else labelled(line, model))


def labelled(line: str, model: str) -> str:
    """Return a sample with the label model_name added, unless it has one."""
    found = _SAMPLE.fullmatch(line)
    if found is None or re.search(rf'(?:^|,){LABEL}="', found.group(2) or ""):
        return line
    name, labels, value = found.groups()
    escaped = model.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
    return f'{name}{{{LABEL}="{escaped}"{"," + labels if labels else ""}}}{value}'
