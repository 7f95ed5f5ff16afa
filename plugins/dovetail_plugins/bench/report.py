"""The result of any measurement as JSON and as a table."""

from __future__ import annotations

import json
import math
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from dovetail.config.config import shown
from dovetail.config.sections.field import flags_of
from dovetail.errors import ConfigError
from dovetail_plugins.bench.machine import machine_facts, version_facts
from dovetail_plugins.bench.settings import ReportFlags

Rows = Sequence[tuple[str, str] | str]
"""Lines of a table: (name, value), or a heading."""
WIDTH = 56


def check_report(flags: ReportFlags) -> None:
    """Check before the run that its result can be saved. Raises: ConfigError"""
    pairs_of(flags.metadata)
    if flags.plot:
        from dovetail_plugins.plot import check_plot

        check_plot(flags.plot)
    check_target(flags.output_json)
    if flags.save_result and not Path(flags.result_dir).expanduser().is_dir():
        raise ConfigError(
            f"there is no folder {flags.result_dir}.", where="--result-dir", fix="create it first."
        )


def check_target(name: str | None) -> None:
    """Check before the run that its result can be written to this file. Raises: ConfigError"""
    if name and not Path(name).expanduser().parent.is_dir():
        what = f"there is no folder for {name}."
        raise ConfigError(what, where="--output-json", fix="create it first.")


def pairs_of(words: Sequence[str]) -> dict[str, str]:
    """Return KEY=VALUE words as pairs. Raises: ConfigError"""
    pairs = dict(word.split("=", 1) for word in words if "=" in word)
    if len(pairs) < len(words):
        raise ConfigError(f"{' '.join(words)!r}: not KEY=VALUE each.", where="--metadata")
    return pairs


def settings_of(*groups: Any) -> dict[str, Any]:
    """Return flags in a form that may be saved: secrets hidden, every value plain."""
    return {
        flag.name: shown(flag, asdict(group)[flag.name])
        for group in groups
        for flag in flags_of(type(group))
    }


def result_of(
    kind: str, flags: ReportFlags, settings: Mapping[str, Any], results: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the whole result of a measurement as plain data."""
    return {
        "kind": kind,
        "date": time.strftime("%Y-%m-%dT%H:%M:%S%z"),
        "label": flags.label,
        "metadata": pairs_of(flags.metadata),
        "machine": machine_facts(),
        "versions": version_facts(),
        "settings": dict(settings),
        "results": dict(results),
    }


def write_result(flags: ReportFlags, result: Mapping[str, Any], model: str) -> list[Path]:
    """Write the result as the flags say; return the files. Raises: ConfigError"""
    paths = [Path(flags.output_json).expanduser()] if flags.output_json else []
    if flags.save_result:
        name = flags.result_filename or _file_name(result, model)
        paths.append(Path(flags.result_dir).expanduser() / name)
    text = json.dumps(result, indent=1, default=str) + "\n"
    for path in paths:
        try:
            path.write_text(text, encoding="utf-8")
        except OSError as error:
            raise ConfigError(f"cannot be written: {error}.", where=str(path)) from error
    return paths


def _file_name(result: Mapping[str, Any], model: str) -> str:
    stamp = time.strftime("%Y%m%d-%H%M%S")
    words = [str(result["kind"]), str(result["label"] or ""), model.rsplit("/", 1)[-1], stamp]
    return "-".join(re.sub(r"[^\w.]+", "_", word) for word in words if word) + ".json"


def table(title: str, rows: Rows) -> str:
    """Return rows as text, with values right-aligned; a plain string is a heading."""
    lines = [f"{f' {title} ':=^{WIDTH}}"]
    for row in rows:
        if isinstance(row, str):
            lines.append(f"{f' {row} ':-^{WIDTH}}")
        else:
            lines.append(f"{row[0]:<{WIDTH - 14}}{row[1]:>14}")
    return "\n".join([*lines, "=" * WIDTH])


def number(value: float | None, digits: int = 2) -> str:
    """Return a figure formatted for a table; a dash if it is missing."""
    if value is None or math.isnan(value):
        return "-"
    return f"{value:,.{digits}f}" if isinstance(value, float) else f"{value:,}"


def summary_rows(title: str, figures: Mapping[str, float], unit: str) -> list[tuple[str, str]]:
    """Return mean, median, std and percentiles of one time as rows."""
    if not figures:
        return [(f"{title} ({unit})", "-")]
    names = [name for name in figures if name not in ("min", "max")]
    return [(f"{name} {title} ({unit})", number(figures[name])) for name in names]
