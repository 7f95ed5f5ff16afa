"""`dovetail bench throughput`: submits many requests together to an engine in this process."""

from __future__ import annotations

import argparse
import sys
import time
from collections import Counter
from collections.abc import Sequence
from typing import Any

from dovetail.config.parse.flags import group_of
from dovetail.interfaces.bench_dataset import BenchPrompt
from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info
from dovetail_plugins.bench.offline import add_offline, engine_config, generate, load, pools
from dovetail_plugins.bench.profiling import profiled
from dovetail_plugins.bench.settings import THROUGHPUT_GROUPS, DatasetFlags, ReportFlags


class BenchThroughputCommand(Command):
    """`dovetail bench throughput`."""

    info = Info(summary="answer or embed many prompts as fast as it goes, offline")
    common = frozenset(
        {
            "dataset_name",
            "dataset_path",
            "num_prompts",
            "input_len",
            "output_len",
            "output_json",
            "dtype",
            "quantization",
            "max_model_len",
            "max_num_seqs",
            "max_num_batched_tokens",
            "tensor_parallel_size",
        }
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the flags. Mutates: parser."""
        add_offline(parser, THROUGHPUT_GROUPS)

    def run(self, args: argparse.Namespace) -> int:
        """Measure, print and save the result; return the exit status: 1 if every answer failed.

        Raises: ConfigError
        """
        from dovetail_plugins.bench.prompts import draw_prompts
        from dovetail_plugins.bench.report import (
            check_report,
            result_of,
            settings_of,
            table,
            write_result,
        )
        from dovetail_plugins.bench.stats import parsed_percentiles

        flags, report = group_of(args, DatasetFlags), group_of(args, ReportFlags)
        check_report(report)
        percentiles = parsed_percentiles(report.metric_percentiles, "--metric-percentiles")
        config = engine_config(args)
        with load(config) as llm:
            prompts = draw_prompts(
                flags,
                seed=config.model.seed or 0,
                tokenizer=llm.tokenizer,
                options=config.plugin.options_of("bench_dataset"),
            )
            generate(llm, prompts[flags.num_prompts :])
            measured = prompts[: flags.num_prompts]
            with profiled(llm, is_asked=report.profile):
                start_s = time.perf_counter()
                answers = generate(llm, measured, shows_progress=sys.stderr.isatty())
                duration_s = time.perf_counter() - start_s
            results = figures(answers, measured, duration_s, percentiles, is_pooled=pools(llm))
            settings = settings_of(flags, report) | {"engine": config.shown()}
            result = result_of("throughput", report, settings, results)
        if report.save_detailed:
            result["requests"] = [_detail(answer, pools(llm)) for answer in answers]
        write_result(report, result, config.model.model or "demo")
        if report.plot:
            _draw(report, answers)
        print(table("throughput", rows(results)))
        for text, count in results["errors"].items():
            print(f"failed: {count} x {text}")
        return 0 if results["completed"] else 1


def figures(
    answers: Sequence[Any],
    prompts: Sequence[BenchPrompt],
    duration_s: float,
    percentiles: Sequence[float],
    *,
    is_pooled: bool,
) -> dict[str, Any]:
    """Return the figures of a run. Times of single requests include their wait in the queue."""
    from dovetail_plugins.bench.stats import summary

    good = [answer for answer in answers if answer.error is None]
    num_prompt_tokens = sum(len(answer.prompt_token_ids) for answer in good)
    num_output_tokens = 0 if is_pooled else sum(map(_output_tokens, good))
    return {
        "is_pooled": is_pooled,
        "requests": len(answers),
        "completed": len(good),
        "failed": len(answers) - len(good),
        "errors": dict(Counter(a.error for a in answers if a.error is not None).most_common()),
        "duration_s": duration_s,
        "prompt_tokens": num_prompt_tokens,
        "cached_prompt_tokens": sum(answer.num_cached_tokens for answer in good),
        "output_tokens": num_output_tokens,
        "distinct_prompts": len({prompt.prompt for prompt in prompts}),
        "requests_per_s": len(good) / duration_s,
        "output_tokens_per_s": num_output_tokens / duration_s,
        "total_tokens_per_s": (num_prompt_tokens + num_output_tokens) / duration_s,
        "e2el_ms": summary(map(_e2e_ms, good), percentiles),
    }


def rows(results: dict[str, Any]) -> list[tuple[str, str] | str]:
    """Return the table's rows."""
    from dovetail_plugins.bench.report import number, summary_rows

    generated = [
        ("output tokens", number(results["output_tokens"])),
        ("output tokens per second", number(results["output_tokens_per_s"])),
    ]
    return [
        ("requests that succeeded", number(results["completed"])),
        ("requests that failed", number(results["failed"])),
        ("duration (s)", number(results["duration_s"])),
        ("prompt tokens", number(results["prompt_tokens"])),
        ("of them found in the prefix cache", number(results["cached_prompt_tokens"])),
        *([] if results["is_pooled"] else generated),
        ("requests per second", number(results["requests_per_s"])),
        ("total tokens per second", number(results["total_tokens_per_s"])),
        "whole request, its wait included",
        *summary_rows("e2el", results["e2el_ms"], "ms"),
    ]


def _output_tokens(answer: Any) -> int:
    return sum(len(output.token_ids) for output in answer.outputs)


def _e2e_ms(answer: Any) -> float:
    return 1e3 * float(answer.metrics.last_token_s - answer.metrics.arrival_s)


def _detail(answer: Any, is_pooled: bool) -> dict[str, Any]:
    return {
        "prompt_tokens": len(answer.prompt_token_ids),
        "output_tokens": 0 if is_pooled else _output_tokens(answer),
        "error": answer.error,
        "e2el_ms": None if answer.error is not None else _e2e_ms(answer),
    }


def _draw(report: ReportFlags, answers: Sequence[Any]) -> None:
    from dovetail_plugins.plot import draw_distributions

    times = [_e2e_ms(answer) for answer in answers if answer.error is None]
    draw_distributions(
        str(report.plot), report.label or "throughput", {"whole request (ms)": times}
    )
