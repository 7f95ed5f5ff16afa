"""`dovetail bench serve`: puts load on any OpenAI-compatible server, and measures from outside.

It asks for the served model, draws prompts, finds out with a small request which token counts the
server supports, and then sends the load. Imports neither torch nor the server.
"""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import os
import sys
import time
from collections.abc import Coroutine, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from dovetail.config.parse.flags import add_groups, group_of
from dovetail.errors import DovetailError
from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info
from dovetail.json_values import json_value
from dovetail_plugins.bench import settings
from dovetail_plugins.bench.dialect import (
    GENERATED,
    USAGE_OPTIONS,
    Dialect,
    endpoint_of,
    kind_of_path,
    models_path,
)

Outcome = TypeVar("Outcome")


class ServerError(DovetailError):
    """The server does not answer, or cannot do what is to be measured."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Flags:
    """All flags of the command."""

    dataset: settings.DatasetFlags
    target: settings.TargetFlags
    load: settings.LoadFlags
    metrics: settings.MetricFlags
    report: settings.ReportFlags


class BenchServeCommand(Command):
    """`dovetail bench serve`."""

    info = Info(summary="load a running server and measure its answers")
    common = frozenset(
        {
            "base_url",
            "host",
            "port",
            "backend",
            "endpoint",
            "batch_size",
            "model",
            "dataset_name",
            "dataset_path",
            "num_prompts",
            "num_warmups",
            "input_len",
            "output_len",
            "ignore_eos",
            "request_rate",
            "max_concurrency",
            "goodput",
            "output_json",
        }
    )

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the flags. Mutates: parser."""
        add_groups(parser, settings.SERVE_GROUPS)

    def run(self, args: argparse.Namespace) -> int:
        """Measure, print and save the result; return the exit status.

        The status is 1 if every request failed, or with --fail-on-error if any did. Raises:
        ConfigError, ServerError
        """
        from dovetail_plugins.bench.serve_report import Checked, keep, show

        flags = flags_of_args(args)
        checked = Checked.of(flags.metrics, flags.report)
        if kind_of_path(path_of(flags.target)) not in GENERATED:
            from dovetail_plugins.bench.serve_pooled import run_pooled

            return run_pooled(flags, checked)
        measured = run_loop(measure(flags))
        result = keep(flags, checked, measured)
        print(show(result["results"], checked))
        failed, completed = result["results"]["failed"], result["results"]["completed"]
        return 1 if not completed or (failed and flags.metrics.fail_on_error) else 0


def flags_of_args(args: argparse.Namespace) -> Flags:
    """Return the flags from the command line."""
    return Flags(
        dataset=group_of(args, settings.DatasetFlags),
        target=group_of(args, settings.TargetFlags),
        load=group_of(args, settings.LoadFlags),
        metrics=group_of(args, settings.MetricFlags),
        report=group_of(args, settings.ReportFlags),
    )


def run_loop(work: Coroutine[Any, Any, Outcome]) -> Outcome:
    """Run a coroutine on uvloop and return its result."""
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


@dataclass(frozen=True, slots=True, kw_only=True)
class Measured:
    """The raw results of a run, before figures are computed."""

    url: str
    dialect: Dialect
    prompts: Sequence[Any]
    traces: Sequence[Any]


def path_of(target_flags: settings.TargetFlags) -> str:
    """Return the path to request. Raises: ConfigError"""
    return endpoint_of(target_flags.endpoint, target_flags.backend)


def target_from(target_flags: settings.TargetFlags) -> Any:
    """Return the target of the requests. Raises: ConfigError"""
    from dovetail_plugins.bench.client import target_of

    return target_of(
        target_flags.base_url or f"http://{target_flags.host}:{target_flags.port}",
        path_of(target_flags),
        api_key=target_flags.api_key or os.environ.get("OPENAI_API_KEY"),
        timeout_s=target_flags.request_timeout,
    )


async def measure(flags: Flags) -> Measured:
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
    return Measured(
        url=target.url,
        dialect=dialect,
        prompts=prompts[: flags.dataset.num_prompts],
        traces=await send_all(target, bodies, flags),
    )


def draw(
    dataset: settings.DatasetFlags,
    target_flags: settings.TargetFlags,
    root: str,
    *,
    needs_text: bool,
    num_extra: int = 1,
) -> list[Any]:
    """Return the measured prompts, then those for the warm-up and the probe."""
    from dovetail_plugins.bench.prompts import draw_prompts, tokenizer_of

    has_vocabulary = target_flags.vocab_size is not None and target_flags.tokenizer is None
    needs_none = has_vocabulary and not needs_text
    return draw_prompts(
        dataset,
        seed=target_flags.seed,
        tokenizer=None if needs_none else tokenizer_of(target_flags, root),
        vocab_tokens=target_flags.vocab_size,
        needs_text=needs_text,
        num_extra=num_extra,
    )


async def send_all(target: Any, bodies: Sequence[bytes], flags: Flags) -> list[Any]:
    """Return the traces of the measured requests, which come first in `bodies`. The rest is the
    warm-up, sent before them."""
    from dovetail_plugins.bench.arrival import arrival_times_s
    from dovetail_plugins.bench.load import allow_connections, run_load
    from dovetail_plugins.bench.profiling import server_profiled

    count, limit = flags.dataset.num_prompts, flags.load.max_concurrency
    allow_connections(min(limit or len(bodies), len(bodies)))
    warmups = bodies[count:]
    await run_load(target, warmups, [0.0] * len(warmups), max_concurrency=limit)
    due_s = arrival_times_s(
        count,
        rate_per_s=flags.load.request_rate,
        burstiness=flags.load.burstiness,
        seed=flags.target.seed,
    )
    with progress(count) as bar:
        async with server_profiled(target, is_asked=flags.report.profile):
            return await run_load(
                target, bodies[:count], due_s, max_concurrency=limit, when_done=bar.update
            )


def progress(total: int) -> Any:
    """Return a progress bar of requests; silent if standard error is not a terminal."""
    from tqdm import tqdm

    return tqdm(total=total, unit="request", disable=not sys.stderr.isatty())


async def find_model(target: Any, target_flags: settings.TargetFlags) -> tuple[str, str]:
    """Return (the model name to request, the folder or hub id that the server reports for it).

    Waits for a server that does not answer yet. Raises: ServerError
    """
    cards = await _model_cards(target, target_flags.ready_check_timeout_sec)
    served = {str(card["id"]): str(card.get("root") or card["id"]) for card in cards}
    name = target_flags.model or next(iter(served), None)
    if name is None:
        raise ServerError(
            "the server lists no model.", where=target.url, fix="name it with --model."
        )
    if served and name not in served:
        raise ServerError(
            f"the server has no model {name!r}.",
            where=target.url,
            fix=f"ask for one of {', '.join(list(served)[:5])}.",
        )
    return name, served.get(name, name)


async def _model_cards(target: Any, patience_s: float) -> list[dict[str, Any]]:
    """Return the cards of /v1/models; empty if the server has no such list."""
    from dovetail_plugins.bench.client import send

    request = target.request("GET", models_path(target.path))
    deadline_s = time.monotonic() + patience_s
    trace = await send(target, request)
    while (trace.error or trace.status == 503) and time.monotonic() < deadline_s:
        await asyncio.sleep(0.2)
        trace = await send(target, request)
    if trace.error:
        raise ServerError(
            f"no answer: {trace.error}.",
            where=target.url,
            fix="start one with `dovetail serve`, or check --base-url.",
        )
    if trace.status == 401:
        raise ServerError(
            "the server wants a key.",
            where=target.url,
            fix="give it with --api-key or OPENAI_API_KEY.",
        )
    try:
        cards = json_value(trace.body)["data"]
    except (ValueError, KeyError, TypeError):
        return []
    return [card for card in cards if isinstance(card, dict) and "id" in card]


async def probe(target: Any, dialect: Dialect, prompt: Any) -> Dialect:
    """Return the dialect with the best token counts that the server accepts, by trying.

    Raises: ServerError with the server's message if every form fails.
    """
    from dovetail_plugins.bench.answers import read_answer
    from dovetail_plugins.bench.client import send

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


def first_failed(target: Any, error: str) -> ServerError:
    """Return the error of a run whose first request failed."""
    return ServerError(
        f"a first request failed, so nothing was measured: {error}",
        where=target.url,
        fix="send the same with curl, and see the server's log.",
    )
