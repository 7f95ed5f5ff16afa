"""InputProcessor: a prompt and sampling params, checked and made into engine requests.

Everything a client can get wrong is found here, in the API process, before the engine hears of the
request.
"""

from __future__ import annotations

import re
import time
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import msgspec

from dovetail import registry
from dovetail.engine.client.fanout import child_params, child_seed, root_seed
from dovetail.engine.client.long_text import encoded, kept
from dovetail.engine.client.no_tokenizer import text_refused
from dovetail.engine.context_length import PROMPT, max_tokens_within, room_for_answer
from dovetail.engine.messages import EngineRequest
from dovetail.errors import ConfigError, RequestError
from dovetail.interfaces.logits import LogitsProcessor
from dovetail.interfaces.sampling_params import SamplingParams
from dovetail.interfaces.spec import EngineSpec
from dovetail.interfaces.tokenizer import Tokenizer

MAX_NAME_CHARS = 256
Prompt = str | Sequence[int]


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRequest:
    """A client's request, ready for the engine. `requests[i]` makes completion i; with
    `are_pieces` they are the pieces of one prompt, whose vectors (of length 1 if `has_length_1`)
    become one."""

    request_id: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    requests: tuple[EngineRequest, ...]
    arrival_s: float
    are_pieces: bool = False
    has_length_1: bool = False


class InputProcessor:
    """Turns prompts into engine requests. Called from several threads; holds no request."""

    def __init__(self, spec: EngineSpec, tokenizer: Tokenizer, *, name: str = "") -> None:
        self._tokenizer = tokenizer
        self._max_model_tokens = spec.run.max_model_tokens
        self._vocab_size = spec.run.model.vocab_size
        self._pools = spec.run.pooling is not None
        self._max_logprobs = spec.max_logprobs
        self._has_tokenizer = spec.has_tokenizer
        self._request_seed = spec.request_seed
        self._eos_token_ids = _eos_token_ids(spec, tokenizer)
        self._name = name
        pattern = spec.processor_pattern
        self._pattern = None if pattern is None else re.compile(pattern)
        self._processors: dict[str, type[LogitsProcessor]] = {
            selection.name: registry.load_selection(selection)
            for selection in spec.run.logits_processors
        }

    def prepare(
        self,
        prompt: Prompt,
        params: SamplingParams,
        request_id: str,
        *,
        serial: int = 0,
        priority: int = 0,
        cache_salt: str = "",
        adapter: str = "",
    ) -> PreparedRequest:
        """Return the engine requests of one client's request.

        `serial` tells apart requests for which clients chose the same id.
        Raises: RequestError naming the field that is wrong.
        """
        arrival_s = time.monotonic()
        if self._pools:
            raise RequestError(
                "this model pools its prompts; it does not generate.",
                where="task",
                fix="use a model that generates, or start this one with --runner generate.",
            )
        verify_text("request_id", request_id)
        verify_text("cache_salt", cache_salt)
        params = _typed(params)
        params.verify()
        self._verify(params)
        prompt_ids = self._truncated(self._token_ids(prompt, params), params)
        params = self._completed(params, len(prompt_ids))
        seed = self._seed(params, serial)
        requests = tuple(
            EngineRequest(
                request_id=f"{request_id}/{self._name}{serial}.{index}",
                prompt_ids=prompt_ids,
                sampling=child_params(params, index),
                seed=child_seed(seed, index),
                priority=priority,
                arrival_s=arrival_s,
                cache_salt=cache_salt,
                adapter=adapter,
            )
            for index in range(params.n)
        )
        return PreparedRequest(
            request_id=request_id,
            prompt_ids=prompt_ids,
            params=params,
            requests=requests,
            arrival_s=arrival_s,
        )

    def _seed(self, params: SamplingParams, serial: int) -> int:
        """Return the request's own seed, one by its place in line under --seed, or a new one."""
        if params.seed is None and self._request_seed is not None:
            return child_seed(self._request_seed, serial + 1)
        return root_seed(params.seed)

    def _token_ids(self, prompt: Prompt, params: SamplingParams) -> tuple[int, ...]:
        """Return the prompt as token ids within the vocabulary; of a long text that is to be
        truncated its end."""
        if isinstance(prompt, str):
            verify_text(PROMPT, prompt)
            most = self._max_model_tokens
            ids = encoded(
                self._tokenizer,
                prompt,
                add_special_tokens=True,
                most=most,
                keep=kept(params.truncate_prompt_tokens, most),
            )
            return tuple(ids)
        prompt_ids = tuple(prompt)
        self._verify_ids(PROMPT, prompt_ids)
        return prompt_ids

    def _truncated(self, prompt_ids: tuple[int, ...], params: SamplingParams) -> tuple[int, ...]:
        """Return the end of the prompt that is wanted, checked to leave room for an answer."""
        prompt_ids = truncated(
            prompt_ids, params.truncate_prompt_tokens, self._max_model_tokens, params.max_tokens
        )
        room_for_answer(len(prompt_ids), self._max_model_tokens)
        return prompt_ids

    def _completed(self, params: SamplingParams, num_prompt_tokens: int) -> SamplingParams:
        """Return the params with everything the engine needs filled in. Raises: RequestError"""
        room = self._max_model_tokens - num_prompt_tokens
        max_tokens = max_tokens_within(room, params.max_tokens, params.min_tokens)
        return msgspec.structs.replace(
            params,
            max_tokens=max_tokens,
            logprobs=0 if params.logprob_token_ids else params.logprobs,
            eos_token_ids=params.eos_token_ids or self._eos_token_ids,
            bad_words_token_ids=params.bad_words_token_ids + self._bad_word_ids(params.bad_words),
        )

    def _bad_word_ids(self, words: Sequence[str]) -> tuple[tuple[int, ...], ...]:
        """Return the token sequences of each word, at the start of a text and after a space."""
        sequences: dict[tuple[int, ...], None] = {}
        for word in words:
            bare = word.lstrip()
            if not bare:
                raise RequestError("a word must not be empty or white space.", where="bad_words")
            for text in (bare, " " + bare):
                ids = self._tokenizer.encode(text, add_special_tokens=False)
                sequences[tuple(ids)] = None
        return tuple(ids for ids in sequences if ids)

    def _verify(self, params: SamplingParams) -> None:
        """Check what depends on the model, the tokenizer or the plugins. Raises: RequestError"""
        for field in ("stop", "bad_words"):
            texts = getattr(params, field)
            for text in texts:
                verify_text(field, text)
            if texts and not self._has_tokenizer:
                raise text_refused(field)
        if params.stop and not params.detokenize:
            raise RequestError("stop strings need detokenize to be true.", where="stop")
        self._verify_ids("stop_token_ids", params.stop_token_ids)
        self._verify_ids("logprob_token_ids", params.logprob_token_ids)
        self._verify_ids("logit_bias", params.logit_bias)
        self._verify_ids("allowed_token_ids", params.allowed_token_ids or ())
        for ids in params.bad_words_token_ids:
            self._verify_ids("bad_words_token_ids", ids)
        if not params.logprob_token_ids:
            self._verify_num_logprobs("logprobs", params.logprobs)
        self._verify_num_logprobs("prompt_logprobs", params.prompt_logprobs)
        self._verify_processors(params)

    def _verify_ids(self, field: str, ids: Iterable[int]) -> None:
        verify_ids(field, ids, self._vocab_size)

    def _verify_num_logprobs(self, field: str, count: int | None) -> None:
        if count is None or self._max_logprobs == -1:
            return
        wanted = self._vocab_size if count == -1 else count
        if wanted > self._max_logprobs:
            raise RequestError(
                f"at most {self._max_logprobs} are given, not {wanted}.",
                where=field,
                fix="ask for fewer, or start the server with a higher --max-logprobs.",
            )

    def _verify_processors(self, params: SamplingParams) -> None:
        for name in params.logits_processors:
            if self._pattern is not None and not self._pattern.match(name[:MAX_NAME_CHARS]):
                raise RequestError(
                    f'this server does not let requests use the logits processor "{name[:64]}".',
                    where="logits_processors",
                    fix="use one that --logits-processor-pattern matches.",
                )
            if name not in self._processors:
                known = ", ".join(sorted(self._processors)) or "none"
                raise RequestError(
                    f'no logits processor "{name}" is loaded; there are: {known}.',
                    where="logits_processors",
                    fix="start the server with --logits-processors naming it.",
                )
        for processor in self._processors.values():
            if processor.wants(params):
                processor.verify(params, self._vocab_size)


def _typed(params: SamplingParams) -> SamplingParams:
    """Return the params with every field of its declared type (lists become tuples).

    Raises: RequestError naming the field. Callers in Python are not checked otherwise.
    """
    try:
        return msgspec.convert(msgspec.to_builtins(params), SamplingParams)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$.")
        raise RequestError(f"{what}.", where=path.rstrip("`") or "sampling params") from None
    except (TypeError, OverflowError, UnicodeError) as error:
        raise RequestError(f"{error}.", where="sampling params") from None


def verify_ids(field: str, ids: Iterable[int], vocab_size: int) -> None:
    """Raise RequestError for a token id outside the vocabulary."""
    for token_id in ids:
        if type(token_id) is not int or not 0 <= token_id < vocab_size:
            raise RequestError(
                f"{token_id!r} is not a valid token id; valid ids are 0 to {vocab_size - 1}.",
                where=field,
            )


def verify_text(field: str, text: str) -> None:
    """Raise RequestError for text that has no UTF-8 form."""
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise RequestError(
            f"the text is not valid Unicode: {error.reason} at character {error.start}.",
            where=field,
            fix="send whole characters, not halves of surrogate pairs.",
        ) from None


def _eos_token_ids(spec: EngineSpec, tokenizer: Tokenizer) -> tuple[int, ...]:
    """Return the checkpoint's end tokens; the tokenizer's own where it names none."""
    if spec.run.model.eos_token_ids:
        return spec.run.model.eos_token_ids
    eos_token_id = tokenizer.facts().eos_token_id
    return () if eos_token_id is None else (eos_token_id,)


def load_tokenizer(spec: EngineSpec) -> Tokenizer:
    """Return the chosen tokenizer. Raises: ConfigError naming the file at fault."""
    tokenizer_class = registry.load_selection(spec.tokenizer)
    if not isinstance(tokenizer_class, type):
        raise ConfigError("a tokenizer must be a class.", where="--tokenizer-mode")
    tokenizer: Tokenizer = registry.make(spec.tokenizer, spec.tokenizer_path)
    return tokenizer


def truncated(
    prompt_ids: Sequence[int],
    keep: int | None,
    max_model_tokens: int,
    max_tokens: int | None,
    *,
    keeps_start: bool = False,
) -> tuple[int, ...]:
    """Return the end of the prompt that truncate_prompt_tokens leaves, or its start.

    -1 leaves room for `max_tokens` beside the prompt, but takes at most half the context for it.
    Raises: RequestError for 0, which would leave nothing.
    """
    if keep is None:
        return tuple(prompt_ids)
    if keep == 0:
        raise RequestError("must be -1 or at least 1.", where="truncate_prompt_tokens")
    if keep == -1:
        keep = max(1, max_model_tokens - min(max_tokens or 1, max_model_tokens // 2))
    return tuple(prompt_ids[:keep] if keeps_start else prompt_ids[-keep:])
