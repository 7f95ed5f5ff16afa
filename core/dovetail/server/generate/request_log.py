"""The log lines at the start and end of each request: --enable-log-requests and related flags."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Sequence
from typing import TYPE_CHECKING

import msgspec

from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail.observability.logging import shortened
from dovetail.registry.blame import described
from dovetail.server.generate.application import App
from dovetail.server.generate.streaming import Step

if TYPE_CHECKING:
    from dovetail.server.generate.generation import Generation

logger = logging.getLogger("dovetail.server")
PARAM_CHARS = 200
"""Maximum characters of one sampling parameter in the log: a schema may be a page long."""


async def with_request_log(
    server: App, generation: Generation, steps: AsyncGenerator[Step, None]
) -> AsyncGenerator[Step, None]:
    """Yield the steps, and log a line when the request arrives and one when it ends."""
    _log_arrival(server, generation)
    start_s = time.monotonic()
    first_s: float | None = None
    causes: dict[int, str] = {}
    texts: dict[int, list[str]] = {}
    num_tokens = 0
    end = "the client left"
    try:
        async for step in steps:
            first_s = first_s or time.monotonic()
            num_tokens = step.num_generated_tokens
            if step.finish_reason is not None:
                causes[step.index] = step.finish_reason
            if server.frontend.enable_log_deltas and step.text:
                _log_delta(server, generation, step)
            if server.frontend.enable_log_outputs:
                texts.setdefault(step.index, []).append(step.text)
            yield step
        end = ", ".join(causes[index] for index in sorted(causes))
    except Exception as error:
        end = described(error)
        raise
    finally:
        await steps.aclose()
        for index in sorted(texts):
            _log_answer(server, generation, index, "".join(texts[index]))
        seconds = time.monotonic() - start_s
        wait_s = (first_s or time.monotonic()) - start_s
        logger.info(
            "request %s ended: %s; %d prompt and %d generated tokens, %.2f s, first token %.2f s",
            generation.request_id, end, len(generation.prompt_ids), num_tokens, seconds, wait_s,
        )  # fmt: skip


def _log_arrival(server: App, generation: Generation) -> None:
    """Log the numbers of a request, and its text at level debug only."""
    ids = generation.prompt_ids
    logger.info(
        "request %s: %d prompt tokens%s%s",
        generation.request_id,
        len(ids),
        f", adapter {generation.meta.adapter}" if generation.meta.adapter else "",
        _set_fields(generation.params),
    )
    if logger.isEnabledFor(logging.DEBUG):
        text = _beginning(generation.meta.names.tokenizer, ids, server.frontend.max_log_len)
        logger.debug("request %s: prompt %r", generation.request_id, text)


def _set_fields(params: SamplingParams) -> str:
    """Return the fields that differ from their defaults, short enough for one line."""
    fields = msgspec.to_builtins(params, str_keys=False)  # leaves defaults out
    shown = (f", {name}={shortened(repr(value), PARAM_CHARS)}" for name, value in fields.items())
    return "".join(shown)


def _beginning(tokenizer: Tokenizer, ids: Sequence[int], limit: int | None) -> str:
    """Return the prompt's text, cut after `limit` characters."""
    if limit is None:
        return tokenizer.decode(ids, skip_special_tokens=False)
    # Decode no more than is shown; the line above has the number of tokens.
    text = tokenizer.decode(ids[: limit + 1], skip_special_tokens=False)
    return text if len(text) <= limit else f"{text[:limit]}..."


def _log_delta(server: App, generation: Generation, step: Step) -> None:
    """Log a piece of an answer as it is generated."""
    shown = shortened(step.text, server.frontend.max_log_len)
    logger.info("request %s: answer %d piece %r", generation.request_id, step.index, shown)


def _log_answer(server: App, generation: Generation, index: int, text: str) -> None:
    """Log one whole answer as the model wrote it, even if it was streamed."""
    shown = shortened(text, server.frontend.max_log_len)
    logger.info("request %s: answer %d %r", generation.request_id, index, shown)
