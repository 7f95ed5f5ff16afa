"""`dovetail bench latency`: runs one batch repeatedly in this process.

Every iteration has new prompts, so that none finds the previous one in the prefix cache.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from typing import Any

from dovetail.config.parse.flags import group_of
from dovetail.interfaces.bench_dataset import BenchPrompt
from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info
from dovetail_plugins.bench.offline import (
    add_offline,
    check_all,
    engine_config,
    generate,
    load,
    pools,
)
from dovetail_plugins.bench.profiling import profiled
from dovetail_plugins.bench.settings import LATENCY_GROUPS, DatasetFlags, LatencyFlags, ReportFlags


class BenchLatencyCommand(Command):
    """`dovetail bench latency`."""

    info = Info(summary="time one batch, offline")
    common = frozenset(
        {
            "batch_size",
            "input_len",
            "output_len",
            "num_iters",
            "num_iters_warmup",
            "output_json",
            "dtype",
            "quantization",
            "max_model_len",
            "tensor_parallel_size",
        }
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the flags. Mutates: parser."""
        add_offline(parser, LATENCY_GROUPS)

    def run(self, args: argparse.Namespace) -> int:
        """Measure, print and save the result; return the exit status. Raises: ConfigError"""
        from dovetail_plugins.bench.report import (
            check_report,
            result_of,
            settings_of,
            table,
            write_result,
        )
        from dovetail_plugins.bench.stats import parsed_percentiles

        flags, report = group_of(args, LatencyFlags), group_of(args, ReportFlags)
        check_report(report)
        percentiles = parsed_percentiles(report.metric_percentiles, "--metric-percentiles")
        config = engine_config(args)
        with load(config) as llm:
            iterations = measure(llm, flags, config.model.seed or 0, is_profiled=report.profile)
            results = figures(iterations, flags, percentiles, is_pooled=pools(llm))
            settings = settings_of(flags, report) | {"engine": config.shown()}
            result = result_of("latency", report, settings, results)
        if report.save_detailed:
            result["iterations"] = iterations
        write_result(report, result, config.model.model or "demo")
        if report.plot:
            from dovetail_plugins.plot import draw_distributions

            series = {f"{name} (ms)": values_ms(iterations, name) for name in TIMES}
            draw_distributions(report.plot, report.label or "latency", series)
        print(table("latency", rows(results)))
        return 0


def measure(
    llm: Any, flags: LatencyFlags, seed: int, *, is_profiled: bool = False
) -> list[dict[str, float]]:
    """Return the times of every measured iteration. Raises: DovetailError if an answer fails"""
    from dovetail_plugins.bench.prompts import draw_prompts

    num_batches = flags.num_iters_warmup + flags.num_iters
    drawn = draw_prompts(
        DatasetFlags(
            num_prompts=num_batches * flags.batch_size,
            input_len=flags.input_len,
            output_len=flags.output_len,
        ),
        seed=seed,
        tokenizer=llm.tokenizer,
    )
    starts = range(0, len(drawn), flags.batch_size)
    batches = [drawn[start : start + flags.batch_size] for start in starts]
    for batch in batches[: flags.num_iters_warmup]:
        time_batch(llm, batch)
    with profiled(llm, is_asked=is_profiled):
        return [time_batch(llm, batch) for batch in batches[flags.num_iters_warmup :]]


TIMES = ("latency", "prefill", "step")


def time_batch(llm: Any, batch: Sequence[BenchPrompt]) -> dict[str, float]:
    """Return the times of one batch in milliseconds.

    latency: from the call to its return; prefill: until every row has its first token (for a
    pooling model, the time reported as such); step: per token of a row after that, absent if there
    is none.
    """
    start_s = time.perf_counter()
    results = generate(llm, batch)
    end_s = time.perf_counter()
    check_all(results)
    arrival_s = min(result.metrics.arrival_s for result in results)
    first_s = max(result.metrics.first_token_s for result in results)
    last_s = max(result.metrics.last_token_s for result in results)
    steps = 0 if pools(llm) else max(prompt.output_tokens for prompt in batch) - 1
    times = {
        "latency_ms": 1e3 * (end_s - start_s),
        "prefill_ms": 1e3 * (first_s - arrival_s),
    }
    return times | ({"step_ms": 1e3 * (last_s - first_s) / steps} if steps else {})


def values_ms(iterations: Sequence[dict[str, float]], name: str) -> list[float]:
    """Return one time of every iteration that has it."""
    return [one[f"{name}_ms"] for one in iterations if f"{name}_ms" in one]


def figures(
    iterations: Sequence[dict[str, float]],
    flags: LatencyFlags,
    percentiles: Sequence[float],
    *,
    is_pooled: bool,
) -> dict[str, Any]:
    """Return the figures over all iterations."""
    from dovetail_plugins.bench.stats import summary

    total_s = sum(one["latency_ms"] for one in iterations) / 1e3
    num_output = 0 if is_pooled else len(iterations) * flags.batch_size * flags.output_len
    num_input = len(iterations) * flags.batch_size * flags.input_len
    return {
        "iterations": len(iterations),
        "requests_per_s": len(iterations) * flags.batch_size / total_s,
        "output_tokens_per_s": None if is_pooled else num_output / total_s,
        "total_tokens_per_s": (num_input + num_output) / total_s,
        **{f"{name}_ms": summary(values_ms(iterations, name), percentiles) for name in TIMES},
    }


def rows(results: dict[str, Any]) -> list[tuple[str, str] | str]:
    """Return the table's rows."""
    from dovetail_plugins.bench.report import number, summary_rows

    shown: list[tuple[str, str] | str] = [
        ("iterations", number(results["iterations"])),
        ("requests per second", number(results["requests_per_s"])),
        ("output tokens per second", number(results["output_tokens_per_s"])),
        ("total tokens per second", number(results["total_tokens_per_s"])),
    ]
    titles = ("whole batch", "until every row has a token", "step after that")
    for name, title in zip(TIMES, titles, strict=True):
        shown += [title, *summary_rows(name, results[f"{name}_ms"], "ms")]
    return shown
