"""Distributions of a measurement as a PNG, with matplotlib, which the extra `plot` installs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib import util
from pathlib import Path

from dovetail.errors import ConfigError


def check_plot(path: str) -> None:
    """Raise ConfigError before the run where no plot could be drawn after it."""
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
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    shown = {name: sorted(values) for name, values in series.items() if values}
    columns = min(2, max(1, len(shown)))
    rows = -(-max(1, len(shown)) // columns)
    figure = Figure(figsize=(5 * columns, 3.5 * rows), layout="constrained")
    FigureCanvasAgg(figure)
    figure.suptitle(title)
    for place, (name, values) in enumerate(shown.items(), start=1):
        axes = figure.add_subplot(rows, columns, place)
        shares = [100 * (rank + 1) / len(values) for rank in range(len(values))]
        axes.step(values, shares, where="post")
        axes.set_xlabel(name)
        axes.set_ylabel("% at most")
        axes.set_ylim(0, 101)
        axes.set_xlim(left=0)
        axes.grid(alpha=0.3)
    figure.savefig(Path(path).expanduser(), dpi=120)
