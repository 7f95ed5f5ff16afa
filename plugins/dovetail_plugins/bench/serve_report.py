"""The printed and saved results of `dovetail bench serve`, made from traces after the load."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Self

from dovetail_plugins.bench import metrics
from dovetail_plugins.bench.answers import RequestOutcome, read_answer
from dovetail_plugins.bench.report import (
    check_report,
    number,
    result_of,
    settings_of,
    summary_rows,
    table,
    write_result,
)
from dovetail_plugins.bench.settings import MetricFlags, ReportFlags, ServeFlags
from dovetail_plugins.bench.stats import parsed_percentiles
from dovetail_plugins.plot import draw_distributions

MAX_SHOWN_ERRORS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class ReportOptions:
    """Flags of the report, parsed before the load."""

    names: tuple[str, ...]
    percentiles: list[float]
    limits_ms: dict[str, float]

    @classmethod
    def of(cls, flags: MetricFlags, report: ReportFlags) -> Self:
        """Return the parsed flags. Raises: ConfigError"""
        check_report(report)
        return cls(
            names=metrics.checked_names(flags.percentile_metrics),
            percentiles=parsed_percentiles(report.metric_percentiles, "--metric-percentiles"),
            limits_ms=metrics.parsed_goodput(flags.goodput),
        )


def save_result(flags: ServeFlags, options: ReportOptions, measured: Any) -> dict[str, Any]:
    """Return the whole result, written and plotted as the flags say. Raises: ConfigError"""
    answers = [read_answer(trace) for trace in measured.traces]
    results = metrics.figures(
        answers,
        measured.prompts,
        percentiles=options.percentiles,
        limits_ms=options.limits_ms,
    )
    result = result_of("serve", flags.report, settings_of(*flags.groups), results)
    result["server"] = {
        "url": measured.url,
        "model": measured.dialect.model,
        "stream_options": dict(measured.dialect.usage),
    }
    if flags.report.save_detailed:
        result["requests"] = metrics.details(answers)
    write_result(flags.report, result, measured.dialect.model)
    if flags.report.plot:
        _draw(flags.report, answers, measured.dialect.model)
    return result


def _draw(report: ReportFlags, answers: list[RequestOutcome], model: str) -> None:
    times = metrics.times_ms([answer for answer in answers if answer.error is None])
    series = {f"{metrics.TITLES[name]} (ms)": values for name, values in times.items()}
    draw_distributions(str(report.plot), report.label or model, series)


def show(results: Mapping[str, Any], options: ReportOptions) -> str:
    """Return the figures as a table, followed by the failures."""
    rows: list[tuple[str, str] | str] = [
        ("requests that succeeded", number(results["completed"])),
        ("requests that failed", number(results["failed"])),
        ("duration (s)", number(results["duration_s"])),
        ("prompt tokens", number(results["prompt_tokens"])),
        ("output tokens", number(results["output_tokens"])),
        ("answers of another length than asked", number(results["other_length"])),
        ("requests per second", number(results["requests_per_s"])),
        ("output tokens per second", number(results["output_tokens_per_s"])),
        ("total tokens per second", number(results["total_tokens_per_s"])),
        ("peak concurrency", number(results["peak_concurrency"])),
        ("mean concurrency", number(results["mean_concurrency"])),
    ]
    if options.limits_ms:
        rows.append(("goodput (requests per second)", number(results["goodput_requests_per_s"])))
    for name in options.names:
        rows += [metrics.TITLES[name], *summary_rows(name, results[f"{name}_ms"], "ms")]
    return "\n".join([table("serve", rows), *_notes(results)])


def _notes(results: Mapping[str, Any]) -> list[str]:
    """Return notes that readers of the figures need: failures, and how tokens were counted."""
    errors = list(results["errors"].items())
    lines = [f"failed: {count} x {text}" for text, count in errors[:MAX_SHOWN_ERRORS]]
    if len(errors) > MAX_SHOWN_ERRORS:
        lines.append(f"failed: {len(errors) - MAX_SHOWN_ERRORS} other texts, see the JSON")
    others = {how: count for how, count in results["counted_by"].items() if how != "running usage"}
    for how, count in others.items():
        lines.append(f"note: tokens of {count} answers were counted by {how}")
    repeated = results["requests"] - results["distinct_prompts"]
    if repeated:
        lines.append(f"note: {repeated} prompts were repeats; a prefix cache makes those cheaper")
    return lines
