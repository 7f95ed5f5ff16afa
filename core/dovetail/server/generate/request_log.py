"""The log lines at the start and end of each request: --enable-log-requests and related flags."""

from __future__ import annotations

import logging
import time
from collections.abc import AsyncGenerator, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

import msgspec

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail.observability.logging import shortened
from dovetail.registry.blame import described
from dovetail.server.generate.streaming import Step

logger = logging.getLogger("dovetail.server")
PARAM_CHARS = 200
"""Maximum characters of one sampling parameter in the log: a schema may be a page long."""


@dataclass(slots=True)
class RequestEnd:
    """How a request ended, for its last log line: the texts before and after the seconds."""

    cause: str = "the client left"
    tokens: str = ""
    delay: str = ""


@contextmanager
def logged(request_id: str, arrival: str) -> Iterator[RequestEnd]:
    """Log that a request arrives, and how it ended, which the block fills in."""
    logger.info("request %s: %s", request_id, arrival)
    end = RequestEnd()
    start_s = time.monotonic()
    try:
        yield end
    except Exception as error:
        end.cause = described(error)
        raise
    finally:
        took = f"{end.tokens}, {time.monotonic() - start_s:.2f} s{end.delay}"
        logger.info("request %s ended: %s; %s", request_id, end.cause, took)


@dataclass(frozen=True, slots=True)
class LoggedRequest:
    """What is logged of a request that arrives. `adapter` is "" for none."""

    request_id: str
    prompt_ids: Sequence[int]
    params: SamplingParams
    adapter: str
    tokenizer: Tokenizer


async def with_request_log(
    flags: FrontendConfig, request: LoggedRequest, steps: AsyncGenerator[Step, None]
) -> AsyncGenerator[Step, None]:
    """Yield the steps, and log a line when the request arrives and one when it ends."""
    adapter = f", adapter {request.adapter}" if request.adapter else ""
    num_prompt = len(request.prompt_ids)
    arrival = f"{num_prompt} prompt tokens{adapter}{_set_fields(request.params)}"
    start_s, wait_s, num_tokens = time.monotonic(), 0.0, 0
    causes: dict[int, str] = {}
    texts: dict[int, list[str]] = {}
    with logged(request.request_id, arrival) as end:
        _log_prompt(request, flags.max_log_len)
        try:
            async for step in steps:
                wait_s = wait_s or time.monotonic() - start_s
                num_tokens = step.num_generated_tokens
                if step.finish_reason is not None:
                    causes[step.index] = step.finish_reason
                if flags.enable_log_deltas and step.text:
                    _log_text(request, f"{step.index} piece", step.text, flags.max_log_len)
                if flags.enable_log_outputs:
                    texts.setdefault(step.index, []).append(step.text)
                yield step
            end.cause = ", ".join(causes[index] for index in sorted(causes))
        finally:
            await steps.aclose()
            for index in sorted(texts):
                _log_text(request, str(index), "".join(texts[index]), flags.max_log_len)
            end.tokens = f"{num_prompt} prompt and {num_tokens} generated tokens"
            end.delay = f", first token {wait_s or time.monotonic() - start_s:.2f} s"


def _set_fields(params: SamplingParams) -> str:
    """Return the fields that differ from their defaults, short enough for one line."""
    fields = msgspec.to_builtins(params, str_keys=False)  # leaves defaults out
    shown = (f", {name}={shortened(repr(value), PARAM_CHARS)}" for name, value in fields.items())
    return "".join(shown)


def _log_prompt(request: LoggedRequest, limit: int | None) -> None:
    """Log the prompt's text, cut after `limit` characters, at level debug only."""
    if logger.isEnabledFor(logging.DEBUG):
        # Decode no more than is shown; the line before has the number of tokens.
        ids = request.prompt_ids[: None if limit is None else limit + 1]
        text = request.tokenizer.decode(ids, skip_special_tokens=False)
        shown = text if limit is None or len(text) <= limit else f"{text[:limit]}..."
        logger.debug("request %s: prompt %r", request.request_id, shown)


def _log_text(request: LoggedRequest, which: str, text: str, limit: int | None) -> None:
    """Log a piece of an answer, or a whole one as the model wrote it, even if it was streamed."""
    logger.info("request %s: answer %s %r", request.request_id, which, shortened(text, limit))
