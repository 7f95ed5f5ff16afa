"""RequestCollector: joins a request's deltas into one result."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from dovetail.engine.client.pooling.results import PoolingResult
from dovetail.engine.client.requests.input_processor import PreparedRequest
from dovetail.engine.client.results.logprobs import cumulative
from dovetail.engine.client.results.outputs import (
    Completion,
    CompletionDelta,
    GenerationResult,
    LogprobsById,
    PromptLogprobs,
    RequestOutput,
    join_deltas,
)
from dovetail.errors import DovetailError
from dovetail.interfaces.data.step import TokenLogprobs

Pooling = TypeVar("Pooling", bound=PoolingResult)


class RequestCollector:
    """Collects one request. `prompt` is its text, if there is one."""

    def __init__(self, prepared: PreparedRequest, prompt: str | None) -> None:
        self._prepared = prepared
        self._prompt = prompt
        self._deltas: list[list[CompletionDelta]] = [[] for _ in prepared.requests]
        self._last: RequestOutput | None = None
        self._prompt_logprobs: PromptLogprobs | None = None
        self._error: str | None = None

    def add(self, output: RequestOutput) -> None:
        """Add an output. Mutates: self"""
        self._last = output
        if output.prompt_logprobs is not None:
            self._prompt_logprobs = output.prompt_logprobs
        for delta in output.deltas:
            self._deltas[delta.index].append(delta)

    def fail(self, error: DovetailError) -> None:
        """Record the error that ended the request. Mutates: self"""
        self._error = str(error)

    @property
    def error(self) -> str | None:
        """Return the request's error text, None if there is none."""
        return self._error

    def deltas(self, index: int) -> list[CompletionDelta]:
        """Return the deltas of one completion so far."""
        return self._deltas[index]

    def pooled(self, result_type: type[Pooling]) -> Pooling:
        """Return the result of a pooling request, as the class `result_type`."""
        last = self._last
        return result_type(
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
            prompt_logprobs=self._told_of_prompt(),
            num_cached_tokens=0 if self._last is None else self._last.num_cached_tokens,
            metrics=None if self._last is None else self._last.metrics,
            error=self._error,
            pooled=None if self._last is None else self._last.pooled,
        )

    def _completion(self, index: int, deltas: list[CompletionDelta]) -> Completion:
        whole = join_deltas(deltas) if deltas else CompletionDelta(index=index)
        logprobs = whole.logprobs
        are_ranked = not self._prepared.params.logprob_token_ids
        return Completion(
            index=index,
            text=whole.text,
            token_ids=whole.token_ids,
            logprobs=None if logprobs is None else self._by_id(logprobs, are_ranked=are_ranked),
            cumulative_logprob=None if logprobs is None else cumulative(logprobs),
            finish_reason="error" if self._error is not None else whole.finish_reason,
            stop_reason=whole.stop_reason,
        )

    def _told_of_prompt(self) -> list[LogprobsById | None] | None:
        positions = self._prompt_logprobs
        return None if positions is None else [None, *self._by_id(positions, are_ranked=True)]

    def _by_id(self, positions: Sequence[TokenLogprobs], *, are_ranked: bool) -> list[LogprobsById]:
        """Return the logprobs of consecutive positions by token id, with the tokens' texts."""
        ids = list(dict.fromkeys(i for one in positions for i in (one.token_id, *one.top_ids)))
        tokenizer = self._prepared.tokenizer if self._prepared.params.detokenize else None
        texts = {} if tokenizer is None else dict(zip(ids, tokenizer.tokens(ids), strict=True))
        return [LogprobsById(one, texts, are_ranked=are_ranked) for one in positions]
