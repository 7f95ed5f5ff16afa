"""PooledInput: checks a prompt and pooling params, and turns them into an engine request.

The equivalent of `input` for pooling. Every mistake of a client is found here, in the API process,
before the engine gets the request.
"""

from __future__ import annotations

import time

import msgspec

from dovetail.engine.client.pooling.pieces import pieces
from dovetail.engine.client.requests.encoder_prompt import EncoderPrompt
from dovetail.engine.client.requests.input_processor import InputProcessor, PreparedRequest, Prompt
from dovetail.engine.client.requests.prompt_checks import verify_ids, verify_text
from dovetail.engine.client.text.long_text import encoded
from dovetail.engine.client.text.vocabularies import Vocabularies
from dovetail.engine.context_length import PROMPT, verify_pooled
from dovetail.engine.messages import EngineRequest
from dovetail.errors import RequestError
from dovetail.interfaces.data.media import PromptPart
from dovetail.interfaces.data.pooling_params import EMBED, PoolingParams
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.spec import EngineSpec, PoolingSpec
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail.multimodal.prompt import MediaPrompt, PlacedPrompt, VectorPrompt

TRUNCATE = "truncate_prompt_tokens"
"""The parameter that errors about truncation name."""
NOTHING_DRAWN = SamplingParams(max_tokens=1, detokenize=False)
"""The sampling params of a pooling request."""


class PooledInput:
    """Turns prompts into engine requests. Used by several threads; stores no request."""

    def __init__(
        self, spec: EngineSpec, vocabularies: Vocabularies, plain: InputProcessor, name: str = ""
    ) -> None:
        """`plain` reads the media of prompts."""
        self._vocabularies, self._plain = vocabularies, plain
        self._pooling = spec.run.pooling
        self._most = spec.run.max_model_tokens
        self._name = name
        self._has_tokenizer = spec.has_tokenizer
        self._longest = None if self._splits(EMBED) else self._most

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
        adapter: str = "",
        prefix: str = "",
    ) -> PreparedRequest:
        """Return the engine request of a prompt. `truncate` is the maximum number of its tokens
        (-1: the model's), the first or the last ones, including special tokens around them.
        `prefix` is an instruction put before a text.

        Raises: RequestError naming the field that is wrong.
        """
        arrival_s = time.monotonic()
        if isinstance(prompt, EncoderPrompt):
            raise RequestError("a model that pools has one prompt.", where=PROMPT)
        media: tuple[PromptPart, ...] = ()
        if isinstance(prompt, MediaPrompt | VectorPrompt):
            prompt = self._plain.read(prompt, adapter)
        if isinstance(prompt, PlacedPrompt):
            media, prompt = prompt.parts, prompt.token_ids
        vocabulary = self._vocabularies.of(adapter)
        tokenizer = vocabulary.tokenizer
        if isinstance(prompt, str):
            prompt = prefix + prompt
            params = self._with_instruction(
                tokenizer, params, prompt, prefix, adds_special_tokens=adds_special_tokens
            )
            prompt = self._as_read(prompt)
        verify_text("request_id", request_id)
        verify_text("cache_salt", cache_salt)
        verify_pooling(self._pooling, params)
        keep = tokens_kept(truncate, self._most)
        if isinstance(prompt, str):
            prompt_ids = self._of_text(tokenizer, prompt, keep, keeps_start, adds_special_tokens)
        else:
            prompt_ids = tuple(prompt)
            verify_ids(PROMPT, prompt_ids, vocabulary.num_tokens)
            if keep is not None and len(prompt_ids) > keep:
                if media:
                    raise RequestError("a prompt with media cannot be truncated.", where=TRUNCATE)
                prompt_ids = prompt_ids[:keep] if keeps_start else prompt_ids[-keep:]
        parts = self._parts(tokenizer, prompt_ids, params, is_whole=bool(media))
        requests = tuple(
            EngineRequest(
                request_id=f"{request_id}/{self._name}{serial}.{index}",
                prompt_ids=part,
                sampling=NOTHING_DRAWN,
                seed=0,
                priority=priority,
                arrival_s=arrival_s,
                cache_salt=cache_salt,
                adapter=adapter,
                pooling=params if index == 0 else _without_prefix(params),
                parts=media,
            )
            for index, part in enumerate(parts)
        )
        return PreparedRequest(
            request_id=request_id,
            prompt_ids=prompt_ids,
            params=NOTHING_DRAWN,
            requests=requests,
            arrival_s=arrival_s,
            tokenizer=tokenizer,
            are_pieces=len(requests) > 1,
            has_length_1=self._has_length_1(params),
        )

    def _of_text(
        self,
        tokenizer: Tokenizer,
        text: str,
        keep: int | None,
        keeps_start: bool,
        adds_special_tokens: bool,
    ) -> tuple[int, ...]:
        """Return the tokens of a text, truncated inside the special tokens around it."""
        verify_text(PROMPT, text)
        ids = encoded(
            tokenizer,
            text,
            add_special_tokens=adds_special_tokens,
            max_tokens=self._longest,
            keep=None if keep is None else keep + 1,
            keeps_start=keeps_start,
            answers=False,
        )
        if keep is None or len(ids) <= keep:
            return tuple(ids)
        before, after = tokenizer.special_around() if adds_special_tokens else ((), ())
        room = keep - len(before) - len(after)
        if room < 1:
            raise no_room(keep, keep - room, keep - room + 1)
        inner = encoded(
            tokenizer, text, add_special_tokens=False, keep=room, keeps_start=keeps_start
        )
        return (*before, *(inner[:room] if keeps_start else inner[-room:]), *after)

    def _splits(self, task: str) -> bool:
        """Return whether a prompt longer than the context is embedded in pieces."""
        return self._pooling is not None and self._pooling.splits_long and task == EMBED

    def _parts(
        self, tokenizer: Tokenizer, ids: tuple[int, ...], params: PoolingParams, *, is_whole: bool
    ) -> tuple[tuple[int, ...], ...]:
        """Return the prompt, split into pieces if it is longer than the context and may be split.
        Raises: RequestError if it is too long"""
        max_tokens = self._most
        if self._pooling is not None and self._splits(params.task) and not is_whole:
            max_tokens = max(
                max_tokens,
                len(ids) if self._pooling.most_tokens is None else self._pooling.most_tokens,
            )
        verify_pooled(len(ids), max_tokens)
        if len(ids) <= self._most:
            return (ids,)
        return pieces(ids, self._most, *(tokenizer.special_around() if self._has_tokenizer else ()))

    def _has_length_1(self, params: PoolingParams) -> bool:
        usual = self._pooling is not None and self._pooling.is_normalized
        return usual if params.is_normalized is None else params.is_normalized

    def _as_read(self, text: str) -> str:
        """Return a text in the form that the model expects."""
        return text.lower() if self._pooling is not None and self._pooling.lowers_case else text

    def _with_instruction(
        self,
        tokenizer: Tokenizer,
        params: PoolingParams,
        text: str,
        prefix: str,
        *,
        adds_special_tokens: bool,
    ) -> PoolingParams:
        """Return the params of a text that starts with an instruction (`prefix` or a prompt of the
        checkpoint), whose tokens some models do not pool.

        Counts tokens as sentence-transformers does: including special tokens before it only.
        """
        if self._pooling is None or self._pooling.includes_prompt or params.unpooled_tokens:
            return params
        known = [one for one in self._pooling.prompts.values() if text.startswith(one)]
        instruction = prefix or max(known, key=len, default="")
        if not instruction:
            return params
        before = tokenizer.special_around()[0] if adds_special_tokens else ()
        own = tokenizer.encode(self._as_read(instruction), add_special_tokens=False)
        return msgspec.structs.replace(params, unpooled_tokens=len(before) + len(own))


def tokens_kept(truncate: int | None, max_tokens: int) -> int | None:
    """Return the maximum number of prompt tokens; None: all. Raises: RequestError"""
    if truncate is None or truncate > 0:
        return truncate
    if truncate == -1:
        return max_tokens
    raise RequestError("must be -1 or at least 1.", where=TRUNCATE)


def no_room(truncate: int, num_special: int, minimum: int) -> RequestError:
    """Return the error for a limit that leaves no room next to the special tokens."""
    return RequestError(
        f"must be at least {minimum} here, not {truncate}: {num_special} special tokens are added "
        "to a prompt.",
        where=TRUNCATE,
    )


def verify_pooling(model: PoolingSpec | None, params: PoolingParams) -> None:
    """Check a pooling request against the model's abilities. Raises: RequestError"""
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
    if model.speech is not None:
        params.speech.verify(len(model.speech.voices))


def _verify_dimensions(model: PoolingSpec, dimensions: int | None) -> None:
    """Check a request's number of dimensions. Raises: RequestError"""
    if dimensions is None or dimensions == model.size:
        return
    if not model.is_matryoshka:
        raise RequestError(
            "this model was not trained for fewer dimensions.",
            where="dimensions",
            fix="leave it out, or start the server with --hf-overrides.is_matryoshka true.",
        )
    if dimensions > model.size:
        raise RequestError(f"the model's vectors have {model.size}.", where="dimensions")
    if model.allowed_dimensions and dimensions not in model.allowed_dimensions:
        known = ", ".join(map(str, model.allowed_dimensions))
        raise RequestError(f"the model was trained for {known}.", where="dimensions")


def _without_prefix(params: PoolingParams) -> PoolingParams:
    """Return the params of a piece other than a text's first."""
    return msgspec.structs.replace(params, unpooled_tokens=0) if params.unpooled_tokens else params
