"""PooledInput: a prompt and pooling params, checked and made into an engine request.

What `input` is for requests that generate. Everything a client can get wrong is found here, in the
API process, before the engine hears of the request.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from functools import cached_property

from dovetail.engine.client.input import PreparedRequest, Prompt, verify_ids, verify_text
from dovetail.engine.client.long_text import encoded
from dovetail.engine.context_length import PROMPT, verify_pooled
from dovetail.engine.messages import EngineRequest
from dovetail.errors import RequestError
from dovetail.interfaces.pooling_params import PoolingParams
from dovetail.interfaces.sampling_params import SamplingParams
from dovetail.interfaces.spec import EngineSpec, PoolingSpec
from dovetail.interfaces.tokenizer import Tokenizer

TRUNCATE = "truncate_prompt_tokens"
"""What errors about cutting a prompt name."""
NOTHING_DRAWN = SamplingParams(max_tokens=1, detokenize=False)
"""The sampling params of a request that is pooled."""


class PooledInput:
    """Turns prompts into engine requests. Called from several threads; holds no request."""

    def __init__(self, spec: EngineSpec, tokenizer: Tokenizer, *, name: str = "") -> None:
        self._tokenizer = tokenizer
        self._pooling = spec.run.pooling
        self._most = spec.run.max_model_tokens
        self._vocab_size = spec.run.model.vocab_size
        self._name = name

    def prepare(
        self,
        prompt: Prompt,
        params: PoolingParams,
        request_id: str,
        *,
        serial: int = 0,
        priority: int = 0,
        truncate: int | None = None,
        keeps_start: bool = True,
        adds_special_tokens: bool = True,
        cache_salt: str = "",
    ) -> PreparedRequest:
        """Return the engine request of a prompt. `truncate` keeps so many of its tokens (-1: as
        many as the model takes), the first or the last, and the special ones around them.

        Raises: RequestError naming the field that is wrong.
        """
        arrival_s = time.monotonic()
        verify_text("request_id", request_id)
        verify_text("cache_salt", cache_salt)
        verify_pooling(self._pooling, params)
        keep = tokens_kept(truncate, self._most)
        if isinstance(prompt, str):
            prompt_ids = self._of_text(prompt, keep, keeps_start, adds_special_tokens)
        else:
            prompt_ids = tuple(prompt)
            verify_ids(PROMPT, prompt_ids, self._vocab_size)
            if keep is not None:
                prompt_ids = prompt_ids[:keep] if keeps_start else prompt_ids[-keep:]
        verify_pooled(len(prompt_ids), self._most)
        request = EngineRequest(
            request_id=f"{request_id}/{self._name}{serial}.0",
            prompt_ids=prompt_ids,
            sampling=NOTHING_DRAWN,
            seed=0,
            priority=priority,
            arrival_s=arrival_s,
            cache_salt=cache_salt,
            pooling=params,
        )
        return PreparedRequest(
            request_id=request_id,
            prompt_ids=prompt_ids,
            params=NOTHING_DRAWN,
            requests=(request,),
            arrival_s=arrival_s,
        )

    def _of_text(
        self, text: str, keep: int | None, keeps_start: bool, adds_special_tokens: bool
    ) -> tuple[int, ...]:
        """Return the tokens of a text, cut between the special ones around it."""
        verify_text(PROMPT, text)
        ids = encoded(
            self._tokenizer,
            text,
            add_special_tokens=adds_special_tokens,
            most=self._most,
            keep=None if keep is None else keep + 1,
            keeps_start=keeps_start,
        )
        if keep is None or len(ids) <= keep:
            return tuple(ids)
        before, after = self._around if adds_special_tokens else ((), ())
        room = keep - len(before) - len(after)
        if room < 1:
            raise no_room(keep, keep - room, keep - room + 1)
        inner = encoded(
            self._tokenizer, text, add_special_tokens=False, keep=room, keeps_start=keeps_start
        )
        return (*before, *(inner[:room] if keeps_start else inner[-room:]), *after)

    @cached_property
    def _around(self) -> tuple[Sequence[int], Sequence[int]]:
        return self._tokenizer.special_around()


def tokens_kept(truncate: int | None, most: int) -> int | None:
    """Return how many tokens of a prompt are kept at most; None: all. Raises: RequestError"""
    if truncate is None or truncate > 0:
        return truncate
    if truncate == -1:
        return most
    raise RequestError("must be -1 or at least 1.", where=TRUNCATE)


def no_room(truncate: int, num_special: int, least: int) -> RequestError:
    """Return the error of a prompt of which nothing is left beside its special tokens."""
    return RequestError(
        f"must be at least {least} here, not {truncate}: {num_special} special tokens are added to "
        "a prompt.",
        where=TRUNCATE,
    )


def verify_pooling(model: PoolingSpec | None, params: PoolingParams) -> None:
    """Check a pooling request against what the model can do. Raises: RequestError"""
    params.verify()
    if model is None:
        raise RequestError(
            "this model generates text; its hidden states are not pooled.",
            where="task",
            fix="start the server with --runner pooling for that.",
        )
    if params.task not in model.tasks:
        raise RequestError(
            f"this model does not do {params.task}; it does {', '.join(model.tasks)}.",
            where="task",
        )
    _verify_dimensions(model, params.dimensions)


def _verify_dimensions(model: PoolingSpec, asked: int | None) -> None:
    """Check how many dimensions a request wants. Raises: RequestError"""
    if asked is None or asked == model.size:
        return
    if not model.is_matryoshka:
        raise RequestError(
            "this model was not trained for fewer dimensions.",
            where="dimensions",
            fix="leave it out, or start the server with --hf-overrides.is_matryoshka true.",
        )
    if asked > model.size:
        raise RequestError(f"the model's vectors have {model.size}.", where="dimensions")
    if model.allowed_dimensions and asked not in model.allowed_dimensions:
        known = ", ".join(map(str, model.allowed_dimensions))
        raise RequestError(f"the model was trained for {known}.", where="dimensions")
