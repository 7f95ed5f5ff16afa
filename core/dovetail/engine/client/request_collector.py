"""RequestCollector: a request's deltas joined into one result, for callers that want the whole."""

from __future__ import annotations

from typing import TypeVar

from dovetail.engine.client.input import PreparedRequest
from dovetail.engine.client.logprobs import cumulative
from dovetail.engine.client.outputs import (
    Completion,
    CompletionDelta,
    GenerationResult,
    PromptLogprobs,
    RequestOutput,
    join_deltas,
)
from dovetail.engine.client.pooling_results import PoolingResult
from dovetail.errors import DovetailError

Pooling = TypeVar("Pooling", bound=PoolingResult)


class RequestCollector:
    """Collects one request. `prompt` is its text, where there was one."""

    def __init__(self, prepared: PreparedRequest, prompt: str | None) -> None:
        self._prepared = prepared
        self._prompt = prompt
        self._deltas: list[list[CompletionDelta]] = [[] for _ in prepared.requests]
        self._last: RequestOutput | None = None
        self._prompt_logprobs: PromptLogprobs | None = None
        self._error: str | None = None

    def add(self, output: RequestOutput) -> None:
        """Take an output. Mutates: self"""
        self._last = output
        if output.prompt_logprobs is not None:
            self._prompt_logprobs = output.prompt_logprobs
        for delta in output.deltas:
            self._deltas[delta.index].append(delta)

    def fail(self, error: DovetailError) -> None:
        """Take the error that ended the request. Mutates: self"""
        self._error = str(error)

    def pooled(self, made: type[Pooling]) -> Pooling:
        """Return the result of a request that was pooled, as one of these."""
        last = self._last
        return made(
            request_id=self._prepared.request_id,
            prompt=self._prompt,
            prompt_token_ids=self._prepared.prompt_ids,
            pooled=None if last is None else last.pooled,
            num_cached_tokens=0 if last is None else last.num_cached_tokens,
            metrics=None if last is None else last.metrics,
            error=self._error,
        )

    def result(self) -> GenerationResult:
        """Return everything so far as one result."""
        return GenerationResult(
            request_id=self._prepared.request_id,
            prompt=self._prompt,
            prompt_token_ids=self._prepared.prompt_ids,
            outputs=tuple(
                self._completion(index, deltas) for index, deltas in enumerate(self._deltas)
            ),
            prompt_logprobs=self._prompt_logprobs,
            num_cached_tokens=0 if self._last is None else self._last.num_cached_tokens,
            metrics=None if self._last is None else self._last.metrics,
            error=self._error,
            pooled=None if self._last is None else self._last.pooled,
        )

    def _completion(self, index: int, deltas: list[CompletionDelta]) -> Completion:
        whole = join_deltas(deltas) if deltas else CompletionDelta(index=index)
        logprobs = whole.logprobs
        return Completion(
            index=index,
            text=whole.text,
            token_ids=whole.token_ids,
            logprobs=logprobs,
            cumulative_logprob=None if logprobs is None else cumulative(logprobs),
            finish_reason="error" if self._error is not None else whole.finish_reason,
            stop_reason=whole.stop_reason,
        )
