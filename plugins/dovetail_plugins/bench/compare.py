"""`dovetail bench compare`: two results of the same measurement, figure by figure, as ratios.

A ratio is B over A. Its spread: if a side has several runs, the lowest and the highest ratio of any
two runs. Otherwise, if both files have the values of every request (`--save-detailed`), the middle
95 % of ratios of resampled values (bootstrap), which shows the noise within a run but not between
runs.
"""

from __future__ import annotations

import argparse
import itertools
import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.config.parse.flags import add_groups, group_of
from dovetail.errors import ConfigError
from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info
from dovetail.json_values import InvalidJson, json_value
from dovetail_plugins.bench.settings import COMPARE_GROUPS, PictureFlags

RATES = ("requests_per_s", "output_tokens_per_s", "total_tokens_per_s", "goodput_requests_per_s")
OWN_SETTINGS = {"output_json", "save_result", "result_dir", "result_filename", "save_detailed",
                "label", "metadata", "plot", "metric_percentiles", "base_url", "api_key", "host",
                "port"}  # fmt: skip
"""Settings that may differ between comparable measurements."""
DRAWS, MAX_DRAWN = 1000, 20_000_000
Result = Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Compared:
    """One figure of both sides, each the median of its runs, and their ratio with its spread."""

    name: str
    a: float
    b: float
    ratio: float
    low: float | None
    high: float | None


class BenchCompareCommand(Command):
    """`dovetail bench compare`."""

    info = Info(summary="compare two results: ratios with their spread")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the two sides and the flags. Mutates: parser."""
        for side in ("A", "B"):
            parser.add_argument(
                side.lower(),
                metavar=f"{side}.json",
                help="result of a measurement; several runs of the same with commas between them",
            )
        add_groups(parser, COMPARE_GROUPS)

    def run(self, args: argparse.Namespace) -> int:
        """Print the ratios; save and plot them if requested. Raises: ConfigError"""
        from dovetail_plugins.bench.report import check_target
        from dovetail_plugins.plot import Ratio, check_plot, draw_ratios

        flags = group_of(args, PictureFlags)
        check_target(flags.output_json)
        if flags.plot:
            check_plot(flags.plot)
        sides = [[read_result(name) for name in text.split(",")] for text in (args.a, args.b)]
        check_kinds(sides)
        rows = list(compare(sides[0], sides[1]))
        names = [label_of(side) for side in sides]
        print("\n".join([*table(rows, names), *notes(sides[0], sides[1], rows)]))
        if flags.output_json:
            figures = [{field: getattr(row, field) for field in Compared.__slots__} for row in rows]
            text = json.dumps({"a": args.a, "b": args.b, "figures": figures}, indent=1)
            Path(flags.output_json).expanduser().write_text(text + "\n", encoding="utf-8")
        if flags.plot:
            drawn = [Ratio(row.name, row.ratio, row.low, row.high) for row in rows]
            draw_ratios(flags.plot, f"{names[1]} / {names[0]}", drawn)
        return 0


def read_result(name: str) -> Result:
    """Return the result in a file. Raises: ConfigError"""
    try:
        found = json_value(Path(name).expanduser().read_text(encoding="utf-8"))
    except InvalidJson as error:
        raise ConfigError(str(error), where=name) from error
    except (OSError, UnicodeError) as error:
        raise ConfigError(f"cannot be read: {error}.", where=name) from error
    if not isinstance(found, dict) or not isinstance(found.get("results"), dict):
        raise ConfigError(
            "is not a result of `dovetail bench`.",
            where=name,
            fix="keep one with --output-json or --save-result.",
        )
    return found


def check_kinds(sides: Sequence[Sequence[Result]]) -> None:
    """Check that all results are of the same kind. Raises: ConfigError"""
    kinds = {str(result.get("kind")) for side in sides for result in side}
    if len(kinds) > 1:
        what = f"results of {' and '.join(sorted(kinds))} are different measurements."
        raise ConfigError(what, fix="compare two of one kind.")


def compare(a: Sequence[Result], b: Sequence[Result]) -> Iterator[Compared]:
    """Yield every figure that all runs have."""
    for name in RATES:
        figures_a, figures_b = _each(a, name), _each(b, name)
        if all(figures_a) and all(figures_b):
            yield _compared(name, figures_a, figures_b)
    for time in _times(a[0]["results"]):
        for word in a[0]["results"][time]:
            if word in ("std", "min", "max"):
                continue
            figures_a, figures_b = _each(a, time, word), _each(b, time, word)
            if all(figures_a) and all(figures_b):
                spread = _drawn_spread(a, b, time, word) if len(a) == len(b) == 1 else None
                yield _compared(f"{word} {time}", figures_a, figures_b, spread)


def _each(side: Sequence[Result], name: str, word: str | None = None) -> list[float]:
    """Return a figure of every run, or one word of a summary; 0 for runs without it."""
    found = [result["results"].get(name) for result in side]
    if word is not None:
        found = [(summary or {}).get(word) for summary in found]
    return [float(value or 0) for value in found]


def _times(results: Mapping[str, Any]) -> list[str]:
    return [name for name, value in results.items() if name.endswith("_ms") and value]


def _compared(
    name: str,
    a: Sequence[float],
    b: Sequence[float],
    spread: tuple[float, float] | None = None,
) -> Compared:
    from dovetail_plugins.bench.stats import percentile

    middle_a, middle_b = percentile(sorted(a), 50), percentile(sorted(b), 50)
    if len(a) > 1 or len(b) > 1:
        pairs = [two / one for one, two in itertools.product(a, b)]
        spread = min(pairs), max(pairs)
    low, high = spread or (None, None)
    return Compared(
        name=name, a=middle_a, b=middle_b, ratio=middle_b / middle_a, low=low, high=high
    )


def _drawn_spread(
    a: Sequence[Result], b: Sequence[Result], time: str, word: str
) -> tuple[float, float] | None:
    """Return the middle 95 % of ratios of resampled values; None if the values were not saved."""
    import numpy as np

    chance = np.random.default_rng(0)
    drawn = []
    for result in (a[0], b[0]):
        values = np.asarray(values_of(result, time))
        if len(values) < 2:
            return None
        times = max(20, min(DRAWS, MAX_DRAWN // len(values)))
        again = (values[chance.integers(len(values), size=len(values))] for _ in range(times))
        drawn.append(np.array([_figure(one, word) for one in again]))
    size = min(map(len, drawn))
    ratios = drawn[1][:size] / drawn[0][:size]
    low, high = np.percentile(ratios, [2.5, 97.5])
    return float(low), float(high)


def _figure(values: Any, word: str) -> float:
    import numpy as np

    if word == "mean":
        return float(values.mean())
    return float(np.percentile(values, 50 if word == "median" else float(word[1:])))


def values_of(result: Result, time: str) -> list[float]:
    """Return a time of every request or batch that has it; empty if they were not saved."""
    found: list[float] = []
    for one in result.get("requests") or result.get("iterations") or ():
        value = one.get(time)
        found += value if isinstance(value, list) else [value] if value is not None else []
    return found


def label_of(side: Sequence[Result]) -> str:
    """Return the name of a side: its label, or the model that was measured."""
    first = side[0]
    server = first.get("server") or {}
    return str(first.get("label") or server.get("model") or first.get("date") or "?")


def table(rows: Sequence[Compared], names: Sequence[str]) -> list[str]:
    """Return the rows as text."""
    lines = [f"A: {names[0]}", f"B: {names[1]}", ""]
    lines.append(f"{'':<26}{'A':>12}{'B':>12}{'B / A':>9}   spread")
    for row in rows:
        spread = "-" if row.low is None else f"{row.low:.3f} to {row.high:.3f}"
        name = row.name.replace("_", " ")
        lines.append(f"{name:<26}{row.a:>12,.2f}{row.b:>12,.2f}{row.ratio:>9.3f}   {spread}")
    return lines


def notes(a: Sequence[Result], b: Sequence[Result], rows: Sequence[Compared]) -> list[str]:
    """Return notes that readers of the ratios need."""
    lines = []
    differing = _differing(a[0], b[0])
    if differing:
        lines.append(f"note: settings differ: {'; '.join(differing)}")
    failed = sum(result["results"].get("failed", 0) for result in (*a, *b))
    if failed:
        lines.append(f"note: {failed} requests failed; their times are not in the figures")
    if len(a) == len(b) == 1:
        lines.append(
            "note: one run a side: the spread is chance within a run, not between runs"
            if any(row.low is not None for row in rows)
            else "note: no spread is known: give several runs a side, or measure with "
            "--save-detailed"
        )
    return lines


def _differing(a: Result, b: Result) -> list[str]:
    settings = [result.get("settings") or {} for result in (a, b)]
    names = [name for name in {**settings[0], **settings[1]} if name not in OWN_SETTINGS]
    pairs = {name: [one.get(name) for one in settings] for name in names if name != "engine"}
    engines = [one.get("engine") or {} for one in settings]
    pairs |= {name: [one.get(name) for one in engines] for name in {**engines[0], **engines[1]}}
    return [f"{name} {one} and {two}" for name, (one, two) in pairs.items() if one != two]
