"""`dovetail bench serve` for endpoints whose answers are streamed: chats and completions."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass

from dovetail.interfaces.bench_dataset import BenchPrompt
from dovetail_plugins.bench.answers import read_answer
from dovetail_plugins.bench.client import RequestTarget, Trace, send
from dovetail_plugins.bench.dialect import USAGE_OPTIONS, Dialect, kind_of_path
from dovetail_plugins.bench.load_run import (
    draw,
    find_model,
    first_failed,
    run_loop,
    send_all,
    target_from,
)
from dovetail_plugins.bench.serve_report import ReportOptions, save_result, show
from dovetail_plugins.bench.settings import ServeFlags


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamedRun:
    """The raw results of a run, before figures are computed."""

    url: str
    dialect: Dialect
    prompts: Sequence[BenchPrompt]
    traces: Sequence[Trace]


def run_streamed(flags: ServeFlags, options: ReportOptions) -> int:
    """Measure, print and save the result; return the exit status.

    Raises: ConfigError, ServerError
    """
    results = save_result(flags, options, run_loop(measure(flags)))["results"]
    print(show(results, options))
    failed, completed = results["failed"], results["completed"]
    return 1 if not completed or (failed and flags.metrics.fail_on_error) else 0


async def measure(flags: ServeFlags) -> StreamedRun:
    """Return the traces of the whole load. Raises: ConfigError, ServerError"""
    target_flags = flags.target
    target = target_from(target_flags)
    is_chat = kind_of_path(target.path) == "chat"
    model, root = await find_model(target, target_flags)
    prompts = draw(flags.dataset, target_flags, root, needs_text=is_chat)
    dialect = Dialect(
        model=model,
        is_chat=is_chat,
        temperature=target_flags.temperature,
        ignores_eos=target_flags.ignore_eos,
        extra=target_flags.extra_body,
    )
    dialect = await probe(target, dialect, prompts.pop())
    bodies = [target.request("POST", target.path, dialect.body(prompt)) for prompt in prompts]
    return StreamedRun(
        url=target.url,
        dialect=dialect,
        prompts=prompts[: flags.dataset.num_prompts],
        traces=await send_all(target, bodies, flags),
    )


async def probe(target: RequestTarget, dialect: Dialect, prompt: BenchPrompt) -> Dialect:
    """Return the dialect with the best token counts that the server accepts, by trying.

    Raises: ServerError with the server's message if every form fails.
    """
    short = dataclasses.replace(prompt, output_tokens=1)
    errors: list[str] = []
    for usage in USAGE_OPTIONS:
        tried = dataclasses.replace(dialect, usage=usage)
        trace = await send(target, target.request("POST", target.path, tried.body(short)))
        answer = read_answer(trace)
        if answer.error is None:
            return tried
        errors.append(answer.error)
        if trace.status not in (400, 422):
            break
    raise first_failed(target, errors[0])
