"""A load on a server: its model, the prompts, and the requests at their times."""

from __future__ import annotations

import asyncio
import os
import sys
import time
from collections.abc import Coroutine, Sequence
from typing import Any, TypeVar

import uvloop
from tqdm import tqdm

from dovetail.errors import DovetailError
from dovetail.interfaces.bench_dataset import BenchPrompt
from dovetail.json_values import json_value
from dovetail_plugins.bench.arrival import arrival_times_s
from dovetail_plugins.bench.client import RequestTarget, Trace, send, target_of
from dovetail_plugins.bench.dialect import endpoint_of, models_path
from dovetail_plugins.bench.load import allow_connections, run_load
from dovetail_plugins.bench.profiling import server_profiled
from dovetail_plugins.bench.prompts import draw_prompts, tokenizer_of
from dovetail_plugins.bench.settings import DatasetFlags, ServeFlags, TargetFlags

Outcome = TypeVar("Outcome")


class ServerError(DovetailError):
    """The server does not answer, or cannot do what is to be measured."""


def run_loop(work: Coroutine[Any, Any, Outcome]) -> Outcome:
    """Run a coroutine on uvloop and return its result."""
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        return runner.run(work)


def target_from(target_flags: TargetFlags) -> RequestTarget:
    """Return the target of the requests. Raises: ConfigError"""
    return target_of(
        target_flags.base_url or f"http://{target_flags.host}:{target_flags.port}",
        endpoint_of(target_flags.endpoint, target_flags.backend),
        api_key=target_flags.api_key or os.environ.get("OPENAI_API_KEY"),
        timeout_s=target_flags.request_timeout,
    )


def draw(
    dataset: DatasetFlags,
    target_flags: TargetFlags,
    root: str,
    *,
    needs_text: bool,
    num_extra: int = 1,
) -> list[BenchPrompt]:
    """Return the measured prompts, then those for the warm-up and the probe."""
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


async def send_all(
    target: RequestTarget, bodies: Sequence[bytes], flags: ServeFlags
) -> list[Trace]:
    """Return the traces of the measured requests, which come first in `bodies`. The rest is the
    warm-up, sent before them."""
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


def progress(total: int) -> tqdm[Any]:
    """Return a progress bar of requests; silent if standard error is not a terminal."""
    return tqdm(total=total, unit="request", disable=not sys.stderr.isatty())


async def find_model(target: RequestTarget, target_flags: TargetFlags) -> tuple[str, str]:
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


async def _model_cards(target: RequestTarget, patience_s: float) -> list[dict[str, Any]]:
    """Return the cards of /v1/models; empty if the server has no such list."""
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


def first_failed(target: RequestTarget, error: str) -> ServerError:
    """Return the error of a run whose first request failed."""
    return ServerError(
        f"a first request failed, so nothing was measured: {error}",
        where=target.url,
        fix="send the same with curl, and see the server's log.",
    )
