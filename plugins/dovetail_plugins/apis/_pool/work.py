"""Runs the prompts of one request through the engine and collects their answers.

At most as many of a request's prompts are in the engine as fit into a step, so that other requests
get their turn. If one fails or the client leaves, all are aborted.
"""

from __future__ import annotations

import asyncio
import logging
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from starlette.requests import Request

from dovetail.engine.client.results.outputs import RequestOutput, numbers
from dovetail.engine.context_length import PROMPT
from dovetail.errors import RequestError
from dovetail.interfaces.data.pooling_params import PoolingParams
from dovetail.observability.logging import shortened
from dovetail.server.endpoint import (
    App,
    in_words_of,
    logged,
)
from dovetail_plugins.apis._pool.fields import PoolFields, PromptUsage
from dovetail_plugins.apis._pool.pictures import Input, Picture
from dovetail_plugins.usage import PromptTokensDetails

logger = logging.getLogger("dovetail.server")
MAX_INPUTS = 8192
"""The maximum number of prompts in a request."""

MAX_NUMBERS = 1 << 25
"""The maximum number of numbers in the answer to a request."""

Told = TypeVar("Told")


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolingJob:
    """A request's prompts and their params, per prompt or shared. `field` is the name of the
    prompts in the body, `is_list` says whether each has an index there. `places` has the places of
    texts that are not in one field."""

    request_id: str
    prompts: Sequence[Input]
    params: PoolingParams | Sequence[PoolingParams]
    field: str
    is_list: bool = True
    places: Mapping[str, str] | None = None
    priority: int = 0
    cache_salt: str = ""
    adapter: str = ""
    truncate: int | None = None
    keeps_start: bool = True
    adds_special_tokens: bool = True

    @property
    def arrival(self) -> str:
        """Return what the log says when the request arrives."""
        adapter = f", adapter {self.adapter}" if self.adapter else ""
        return f"{len(self.prompts)} prompts to {self.params_of(0).task}{adapter}"

    def params_of(self, which: int) -> PoolingParams:
        """Return the params of a prompt."""
        return self.params if isinstance(self.params, PoolingParams) else self.params[which]

    def names(self, which: int) -> dict[str, str]:
        """Return the client's names of the fields in errors."""
        place = f"{self.field}[{which}]" if self.is_list else self.field
        prompt = self.prompts[which]
        if self.places is not None and isinstance(prompt, str):
            place = self.places.get(prompt, self.field)
        return {PROMPT: place}

    def id_of(self, which: int) -> str:
        """Return the engine's id of a prompt."""
        return f"{self.request_id}-{which}" if len(self.prompts) > 1 else self.request_id


@dataclass(slots=True, kw_only=True)
class Answers:
    """The results of the prompts, in order, and the number of tokens read."""

    items: list[Any] = field(default_factory=list)
    num_tokens: int = 0
    num_cached_tokens: int = 0

    def usage(self, server: App) -> PromptUsage:
        """Return OpenAI's usage object."""
        details = None
        has_cache = server.engine.spec.cache.uses_prefix_cache
        if server.frontend.enable_prompt_tokens_details and has_cache:
            details = PromptTokensDetails(cached_tokens=self.num_cached_tokens)
        return PromptUsage(
            prompt_tokens=self.num_tokens,
            total_tokens=self.num_tokens,
            prompt_tokens_details=details,
        )


def request_id_of(body: PoolFields, request: Request) -> str:
    """Return the id of a request: the body's, the header's, or a new one."""
    return body.request_id or str(request.state.request_id)


def job_of(
    body: PoolFields,
    request: Request,
    prompts: Sequence[Input],
    params: PoolingParams | Sequence[PoolingParams],
    *,
    field: str,
    is_list: bool,
    places: Mapping[str, str] | None = None,
    adds_special_tokens: bool = True,
    adapter: str = "",
) -> PoolingJob:
    """Return the job of a request's prompts, with the fields of its body that apply to all of
    them."""
    return PoolingJob(
        request_id=request_id_of(body, request),
        prompts=prompts,
        params=params,
        field=field,
        is_list=is_list,
        places=places,
        priority=body.priority,
        cache_salt=body.cache_salt or "",
        adapter=adapter,
        truncate=body.truncate_prompt_tokens,
        keeps_start=body.truncation_side != "left",
        adds_special_tokens=adds_special_tokens,
    )


def check_inputs(prompts: Sequence[Input], where: str, *, is_list: bool = True) -> None:
    """Raise RequestError if there are too many prompts or one is empty."""
    if len(prompts) > MAX_INPUTS:
        raise RequestError(
            f"{len(prompts)} inputs are more than one request may have, which is {MAX_INPUTS}.",
            where=where,
            fix="send them in several requests.",
            code="too_many_inputs",
        )
    for which, prompt in enumerate(prompts):
        if not prompt:
            place = f"{where}[{which}]" if is_list else where
            raise RequestError("is empty.", where=place, fix="send some text.")


async def answered(
    server: App, job: PoolingJob, convert: Callable[[RequestOutput], Told]
) -> Answers:
    """Return the results of the prompts, each converted by `convert`.

    Raises: RequestError in the client's field names, RequestFault, Overloaded, EngineDead
    """
    if not job.prompts:
        return Answers()
    window = min(len(job.prompts), server.engine.spec.total_rows)
    with server.admission.admit(window):
        run = _Run(server, job, convert)
        if not server.frontend.enable_log_requests:
            await run.all(window)
            return run.answers
        with logged(job.request_id, job.arrival) as end:
            _log_first_prompt(job, server.frontend.max_log_len)
            try:
                await run.all(window)
                end.cause = "stop"
            finally:
                end.tokens = f"{run.answers.num_tokens} tokens"
        return run.answers


def _log_first_prompt(job: PoolingJob, limit: int | None) -> None:
    """Log the first of a request's texts, at level debug only."""
    if logger.isEnabledFor(logging.DEBUG):
        shown = shortened(str(job.prompts[0]), limit)
        logger.debug("request %s: first prompt %r", job.request_id, shown)


class _Run:
    """The prompts of one job while they are processed."""

    def __init__(
        self, server: App, job: PoolingJob, convert: Callable[[RequestOutput], Any]
    ) -> None:
        self._server = server
        self._job = job
        self._told = convert
        self._num_numbers = 0
        self.answers = Answers(items=[None] * len(job.prompts))

    async def all(self, window: int) -> None:
        """Collect all answers, with `window` prompts in flight. Raises: as `answered`"""
        left = iter(range(len(self._job.prompts)))

        async def work() -> None:
            for which in left:
                await self._one(which)

        if window == 1:
            await work()
            return
        try:
            async with asyncio.TaskGroup() as group:
                for _ in range(window):
                    group.create_task(work())
        except ExceptionGroup as errors:
            raise errors.exceptions[0] from None

    async def _one(self, which: int) -> None:
        job = self._job
        with in_words_of(job.names(which)):
            given = job.prompts[which]
            output = await self._server.engine.pool(
                await given.read() if isinstance(given, Picture) else given,
                job.params_of(which),
                job.id_of(which),
                priority=job.priority,
                truncate=job.truncate,
                keeps_start=job.keeps_start,
                adds_special_tokens=job.adds_special_tokens,
                cache_salt=job.cache_salt,
                adapter=job.adapter,
            )
        self._note_size(output)
        self.answers.num_tokens += len(output.prompt_token_ids)
        self.answers.num_cached_tokens += output.num_cached_tokens
        self.answers.items[which] = self._told(output)

    def _note_size(self, output: RequestOutput) -> None:
        """Count the numbers of an answer. Raises: RequestError if there are too many"""
        assert output.pooled is not None
        self._num_numbers += math.prod(output.pooled.shape)
        if self._num_numbers > MAX_NUMBERS:
            raise RequestError(
                f"the answer would have more than {MAX_NUMBERS} numbers.",
                where=self._job.field,
                fix="send fewer inputs in one request.",
                code="too_many_inputs",
            )


def array_of(output: RequestOutput) -> Any:
    """Return the numbers of a prompt's answer as float32."""
    assert output.pooled is not None
    return numbers(output.pooled)
