"""Pictures as PNG files, with matplotlib, which the extra `plot` installs and nothing else imports.

Knows numbers and their names, not what was measured.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import util
from pathlib import Path
from typing import Any, NamedTuple

from dovetail.errors import ConfigError


def check_plot(path: str) -> None:
    """Raise ConfigError before the run if no plot could be drawn after it."""
    if not Path(path).expanduser().parent.is_dir():
        raise ConfigError(f"there is no folder for {path}.", where="--plot", fix="create it first.")
    if util.find_spec("matplotlib") is None:
        raise ConfigError(
            "matplotlib, which draws it, is not installed.",
            where="--plot",
            fix='run `pip install "dovetail-llm[plot]"`.',
        )
    if Path(path).suffix.lower() != ".png":
        raise ConfigError(
            f"{path} is not the name of a PNG file.", where="--plot", fix="end it in `.png`."
        )


def draw_distributions(path: str, title: str, series: Mapping[str, Sequence[float]]) -> None:
    """Draw one cumulative distribution per series; names carry their unit. Writes `path`."""
    shown = {name: sorted(values) for name, values in series.items() if values}
    columns = min(2, max(1, len(shown)))
    rows = -(-max(1, len(shown)) // columns)
    figure = _figure(title, 5 * columns, 3.5 * rows)
    for place, (name, values) in enumerate(shown.items(), start=1):
        axes = figure.add_subplot(rows, columns, place)
        shares = [100 * (rank + 1) / len(values) for rank in range(len(values))]
        axes.step(values, shares, where="post")
        axes.set_xlabel(name)
        axes.set_ylabel("% at most")
        axes.set_ylim(0, 101)
        axes.set_xlim(left=0)
        axes.grid(alpha=0.3)
    _save(figure, path)


class Ratio(NamedTuple):
    """A ratio with its spread; None if it is unknown."""

    name: str
    ratio: float
    low: float | None
    high: float | None


def draw_ratios(path: str, title: str, ratios: Sequence[Ratio]) -> None:
    """Draw ratios with their spreads around a line at 1, the first on top. Writes `path`."""
    figure = _figure(title, 8, 1.2 + 0.32 * max(1, len(ratios)))
    axes = figure.add_subplot()
    axes.axvline(1, color="grey", linewidth=1)
    for place, one in enumerate(ratios):
        if one.low is not None and one.high is not None:
            axes.plot([one.low, one.high], [place, place], color="C0", linewidth=3, alpha=0.4)
        axes.plot([one.ratio], [place], "o", color="C0")
    axes.set_yticks(range(len(ratios)), [one.name for one in ratios])
    axes.invert_yaxis()
    axes.set_xlabel("ratio")
    axes.grid(axis="x", alpha=0.3)
    _save(figure, path)


class Span(NamedTuple):
    """A part of a time line, in seconds from its beginning."""

    name: str
    began_s: float
    duration_s: float


def draw_timeline(path: str, title: str, spans: Sequence[Span]) -> None:
    """Draw spans below each other over one axis of seconds. Writes `path`."""
    figure = _figure(title, 9, 1.2 + 0.35 * max(1, len(spans)))
    axes = figure.add_subplot()
    for place, span in enumerate(spans):
        axes.barh(place, span.duration_s, left=span.began_s, height=0.7)
        axes.text(span.began_s + span.duration_s, place, f" {span.duration_s:.2f} s", va="center")
    axes.set_yticks(range(len(spans)), [span.name for span in spans])
    axes.invert_yaxis()
    axes.set_xlabel("seconds")
    axes.set_xlim(0, 1.15 * max((s.began_s + s.duration_s for s in spans), default=1))
    axes.grid(axis="x", alpha=0.3)
    _save(figure, path)


FAR = 3
"""A limit that many times beyond what there is would squeeze it into a corner."""


def draw_parts(path: str, title: str, parts: Mapping[str, float], unit: str, limit: float) -> None:
    """Draw parts of one whole as one bar, and a line at `limit` if it is near enough. Names include
    their sizes. Writes `path`.
    """
    figure = _figure(title, 9, 3.4)
    axes = figure.add_subplot()
    left = 0.0
    for name, value in parts.items():
        axes.barh(0, value, left=left, label=name)
        left += value
    if 0 < limit <= FAR * left:
        axes.axvline(limit, color="black", linestyle="--", label="free")
    axes.set_yticks([])
    axes.set_xlabel(unit)
    figure.legend(loc="outside lower center", ncols=3, frameon=False)
    _save(figure, path)


def _figure(title: str, width: float, height: float) -> Any:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(width, height), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    return figure


def _save(figure: Any, path: str) -> None:
    figure.savefig(Path(path).expanduser(), dpi=120)
