"""`dovetail bench serve` for endpoints without streamed answers: vectors, classes, rankings.

A request has several texts (--batch-size). Figures are texts and tokens per second, and the times
of whole requests.
"""

from __future__ import annotations

import dataclasses
import json
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from dovetail.interfaces.bench_dataset import BenchPrompt
from dovetail.json_values import json_value
from dovetail_plugins.bench import metrics
from dovetail_plugins.bench.answers import RequestOutcome, failed_answer, message_of
from dovetail_plugins.bench.client import Trace, send
from dovetail_plugins.bench.dialect import kind_of_path
from dovetail_plugins.bench.load_run import (
    draw,
    find_model,
    first_failed,
    run_loop,
    send_all,
    target_from,
)
from dovetail_plugins.bench.report import (
    number,
    result_of,
    settings_of,
    summary_rows,
    table,
    write_result,
)
from dovetail_plugins.bench.serve_report import ReportOptions
from dovetail_plugins.bench.settings import ServeFlags
from dovetail_plugins.bench.stats import peak_overlap, summary
from dovetail_plugins.plot import draw_distributions

_PAIRED = {"score": ("text_1", "text_2"), "rerank": ("query", "documents")}
"""Endpoints that compare one text with others -> the two field names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledDialect:
    """The format of every body of a run; `kind` is one of `dialect.ENDS`."""

    model: str
    kind: str
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def needs_text(self) -> bool:
        """Return whether token ids cannot be sent."""
        return self.kind in _PAIRED

    def num_prompts(self, batch_size: int) -> int:
        """Return how many prompts a request with `batch_size` texts takes."""
        return batch_size + (self.kind in _PAIRED)

    def body(self, prompts: Sequence[BenchPrompt]) -> bytes:
        """Return the JSON of a request."""
        texts = [one.prompt if isinstance(one.prompt, str) else list(one.prompt) for one in prompts]
        fields: dict[str, Any] = {"model": self.model}
        if self.kind in _PAIRED:
            one, others = _PAIRED[self.kind]
            fields |= {one: texts[0], others: texts[1:]}
        else:
            fields["input"] = texts
        fields |= self.extra
        return json.dumps({name: v for name, v in fields.items() if v is not None}).encode()


@dataclass(frozen=True, slots=True, kw_only=True)
class PooledRun:
    """The raw results of a run."""

    url: str
    model: str
    answers: Sequence[RequestOutcome]


def run_pooled(flags: ServeFlags, options: ReportOptions) -> int:
    """Measure, print and save the result; return the exit status.

    Raises: ConfigError, ServerError
    """
    measured = run_loop(measure(flags))
    results = figures(measured.answers, flags.target.batch_size, options)
    result = result_of("serve", flags.report, settings_of(*flags.groups), results)
    result["server"] = {"url": measured.url, "model": measured.model}
    if flags.report.save_detailed:
        result["requests"] = metrics.details(measured.answers)
    write_result(flags.report, result, measured.model)
    if flags.report.plot:
        times = [1e3 * one.e2e_s for one in measured.answers if one.error is None]
        title = flags.report.label or measured.model
        draw_distributions(flags.report.plot, title, {f"{metrics.TITLES['e2el']} (ms)": times})
    print(table("serve", rows(results, options)))
    for text, count in results["errors"].items():
        print(f"failed: {count} x {text}")
    failed = results["failed"] and flags.metrics.fail_on_error
    return 1 if failed or not results["completed"] else 0


async def measure(flags: ServeFlags) -> PooledRun:
    """Return the answers of the whole load. Raises: ConfigError, ServerError"""
    target = target_from(flags.target)
    model, root = await find_model(target, flags.target)
    dialect = PooledDialect(
        model=model, kind=kind_of_path(target.path), extra=flags.target.extra_body
    )
    per = dialect.num_prompts(flags.target.batch_size)
    dataset = dataclasses.replace(
        flags.dataset,
        num_prompts=per * flags.dataset.num_prompts,
        num_warmups=per * flags.dataset.num_warmups,
    )
    prompts = draw(dataset, flags.target, root, needs_text=dialect.needs_text, num_extra=per)
    bodies = [
        target.request("POST", target.path, dialect.body(prompts[at : at + per]))
        for at in range(0, len(prompts), per)
    ]
    first = read_pooled(await send(target, bodies.pop()))
    if first.error is not None:
        raise first_failed(target, first.error)
    traces = await send_all(target, bodies, flags)
    return PooledRun(url=target.url, model=model, answers=[read_pooled(one) for one in traces])


def read_pooled(trace: Trace) -> RequestOutcome:
    """Return the outcome of a trace; every failure is reported in `error`."""
    if trace.error is not None or trace.status != 200:
        said = trace.error or f"status {trace.status}: {message_of(trace.body)}"
        return failed_answer(trace, said)
    try:
        usage = json_value(trace.body).get("usage") or {}
    except (ValueError, AttributeError):
        return failed_answer(trace, "the answer is not a JSON object")
    tokens = usage.get("prompt_tokens", usage.get("total_tokens"))
    return RequestOutcome(
        start_s=trace.start_s,
        end_s=trace.end_s,
        connect_s=trace.connect_s,
        prompt_tokens=tokens if isinstance(tokens, int) else None,
        counted_by="final usage",
    )


def figures(
    answers: Sequence[RequestOutcome], batch_size: int, options: ReportOptions
) -> dict[str, Any]:
    """Return the figures of a run, which lasts from the first start to the last end."""
    duration_s = max(1e-9, max(a.end_s for a in answers) - min(a.start_s for a in answers))
    good = [answer for answer in answers if answer.error is None]
    counted = [answer.prompt_tokens for answer in good]
    num_tokens = sum(count for count in counted if count is not None)
    tells_tokens = bool(good) and None not in counted
    num_good = sum(metrics.is_good(answer, options.limits_ms) for answer in good)
    return {
        "requests": len(answers),
        "completed": len(good),
        "failed": len(answers) - len(good),
        "errors": dict(Counter(a.error for a in answers if a.error is not None).most_common()),
        "duration_s": duration_s,
        "texts": len(good) * batch_size,
        "prompt_tokens": num_tokens if tells_tokens else None,
        "requests_per_s": len(good) / duration_s,
        "texts_per_s": len(good) * batch_size / duration_s,
        "prompt_tokens_per_s": num_tokens / duration_s if tells_tokens else None,
        "goodput_requests_per_s": num_good / duration_s if options.limits_ms else None,
        "peak_concurrency": peak_overlap((a.start_s, a.end_s) for a in answers),
        "mean_concurrency": sum(a.e2e_s for a in answers) / duration_s,
        "e2el_ms": summary([1e3 * answer.e2e_s for answer in good], options.percentiles),
    }


def rows(results: Mapping[str, Any], options: ReportOptions) -> list[tuple[str, str] | str]:
    """Return the table's rows."""
    found: list[tuple[str, str] | str] = [
        ("requests that succeeded", number(results["completed"])),
        ("requests that failed", number(results["failed"])),
        ("duration (s)", number(results["duration_s"])),
        ("texts", number(results["texts"])),
        ("tokens", number(results["prompt_tokens"])),
        ("requests per second", number(results["requests_per_s"])),
        ("texts per second", number(results["texts_per_s"])),
        ("tokens per second", number(results["prompt_tokens_per_s"])),
        ("peak concurrency", number(results["peak_concurrency"])),
        ("mean concurrency", number(results["mean_concurrency"])),
    ]
    if options.limits_ms:
        found.append(("goodput (requests per second)", number(results["goodput_requests_per_s"])))
    return [*found, metrics.TITLES["e2el"], *summary_rows("e2el", results["e2el_ms"], "ms")]
