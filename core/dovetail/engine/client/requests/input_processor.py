"""InputProcessor: checks a prompt and sampling params, and turns them into engine requests.

Every mistake of a client is found here, before the engine gets the request.
"""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from dovetail import registry
from dovetail.engine.client.requests.encoder_prompt import (
    DECODER,
    EncoderPrompt,
    PlainPrompt,
    read_prompt,
    verify_alignment,
)
from dovetail.engine.client.requests.fanout import child_params, child_seed, root_seed
from dovetail.engine.client.requests.params import ParamsReader
from dovetail.engine.client.requests.prompt_checks import truncated, verify_ids, verify_text
from dovetail.engine.client.text.long_text import encoded, max_kept_tokens
from dovetail.engine.client.text.vocabularies import Vocabularies, Vocabulary
from dovetail.engine.context_length import PROMPT, room_for_answer
from dovetail.engine.messages import EngineRequest
from dovetail.errors import RequestError
from dovetail.interfaces.data.media import VECTORS, PromptPart
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail.multimodal.prompt import MediaPrompt, PlacedPrompt, VectorPrompt, placed
from dovetail.multimodal.reader import MediaReader
from dovetail.multimodal.vectors import has_no_tokens, placed_vectors

INLINE_PROMPT_CHARS = 2048
"""Longer prompts are tokenized in a thread, so that other requests keep streaming."""
Prompt = PlainPrompt | MediaPrompt | VectorPrompt | PlacedPrompt | EncoderPrompt


@dataclass(frozen=True, slots=True, kw_only=True)
class PreparedRequest:
    """A client's request, ready for the engine. `requests[i]` makes completion i, decoded by
    `tokenizer`. With `are_pieces` they are the pieces of one prompt, and their vectors (of length 1
    if `has_length_1`) are merged. `cache_key`: see RequestStats."""

    request_id: str
    prompt_ids: tuple[int, ...]
    params: SamplingParams
    requests: tuple[EngineRequest, ...]
    arrival_s: float
    tokenizer: Tokenizer
    are_pieces: bool = False
    has_length_1: bool = False
    cache_key: tuple[str, str] | None = None


class InputProcessor:
    """Turns prompts into engine requests. Used by several threads; stores no request."""

    def __init__(self, spec: EngineSpec, vocabularies: Vocabularies, *, name: str = "") -> None:
        self._vocabularies = vocabularies
        self._params = ParamsReader(spec)
        self._max_model_tokens = spec.run.max_model_tokens
        self._encoder = spec.run.model.encoder
        self._pools = spec.run.pooling is not None
        self._keeps_prefixes = spec.cache.uses_prefix_cache
        self._has_connector = spec.run.transfer is not None
        self._request_seed = spec.request_seed
        limits = spec.schedule
        self._most_part_tokens = limits.most_part_tokens if limits.keeps_parts_whole else None
        self._model, self._takes_vectors = spec.run.model, spec.takes_vectors
        self._reader = None if spec.media is None else MediaReader(spec.run.model, spec.media)
        self._media_limits = {} if spec.media is None else spec.media.settings.limits
        self._media_adapters = {} if spec.media is None else spec.media.adapters
        self._name = name

    def prepare(
        self,
        prompt: Prompt,
        params: SamplingParams,
        request_id: str,
        *,
        serial: int = 0,
        priority: int = 0,
        cache_salt: str = "",
        cache_pin_s: float = 0.0,
        cache_pin_tokens: int = 0,
        kv_transfer: dict[str, Any] | None = None,
        adapter: str = "",
    ) -> PreparedRequest:
        """Return the engine requests of one client's request.

        `serial` distinguishes requests with the same client id. `adapter` names a loaded adapter
        ("": none). The first `cache_pin_tokens` of the prompt (0: all) stay cached for
        `cache_pin_s` seconds after the request; `kv_transfer` are the client's kv_transfer_params.
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
        self._verify_reuse(cache_pin_s, kv_transfer)
        vocabulary = self._vocabularies.of(adapter)
        params = self._params.read(params, vocabulary)
        prompt_ids, sent, parts = self._read(prompt, params, vocabulary)
        if not adapter:
            adapter = self._media_adapter(parts)
            vocabulary = self._vocabularies.of(adapter)
        params = self._params.completed(params, len(prompt_ids), vocabulary)
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
                parts=parts,
                pin=(0.0 if index else cache_pin_s, cache_pin_tokens or len(prompt_ids)),
                kv_transfer=kv_transfer,
            )
            for index in range(params.n)
        )
        return PreparedRequest(
            request_id=request_id,
            prompt_ids=sent,
            params=params,
            requests=requests,
            arrival_s=arrival_s,
            tokenizer=vocabulary.tokenizer,
            cache_key=(cache_salt, adapter) if self._keeps_prefixes and not parts else None,
        )

    def _media_adapter(self, parts: Sequence[PromptPart]) -> str:
        """Return the adapter of a prompt's media, "" if they have none or several."""
        kinds = {part.place.kind for part in parts}
        found = {self._media_adapters[kind] for kind in kinds & self._media_adapters.keys()}
        return found.pop() if len(found) == 1 else ""

    def _verify_reuse(self, pin_s: float, kv_transfer: Mapping[str, Any] | None) -> None:
        """Raise RequestError if the request needs a prefix cache or a connector that is off."""
        if pin_s and not self._keeps_prefixes:
            raise RequestError(
                "prefix caching is off, so that no prefix stays.",
                where="cache_pin_s",
                fix="leave it out, or start the server with --enable-prefix-caching.",
            )
        if kv_transfer and not self._has_connector:
            raise RequestError(
                "this engine has no KV connector.",
                where="kv_transfer_params",
                fix="leave them out, or start the server with --kv-transfer-config.",
            )

    def _seed(self, params: SamplingParams, serial: int) -> int:
        """Return the request's own seed, one derived from --seed and `serial`, or a random one."""
        if params.seed is None and self._request_seed is not None:
            return child_seed(self._request_seed, serial + 1)
        return root_seed(params.seed)

    def _read(
        self, prompt: Prompt, params: SamplingParams, vocabulary: Vocabulary
    ) -> tuple[tuple[int, ...], tuple[int, ...], tuple[PromptPart, ...]]:
        """Return the token ids to compute, the prompt's, and the media. Raises: RequestError"""
        encoder = self._encoder
        if encoder is None and isinstance(prompt, EncoderPrompt):
            raise RequestError(
                "this model has no encoder.", where=PROMPT, fix="send one prompt alone."
            )
        verify_alignment(params.alignment, encoder)
        if encoder is None:
            ids, parts = self._with_media(prompt, params, vocabulary)
            return ids, ids, parts
        if isinstance(prompt, MediaPrompt | VectorPrompt | PlacedPrompt):
            raise RequestError("the encoder of this model takes no media in a text.", where=PROMPT)
        if params.prompt_logprobs is not None:
            raise RequestError(
                "a model with an encoder tells no logprobs of its prompt.", where="prompt_logprobs"
            )
        if not isinstance(prompt, EncoderPrompt):
            prompt = EncoderPrompt(encoder=prompt)
        max_tokens = encoder.max_rows or self._max_model_tokens

        def sent_ids(text: PlainPrompt) -> tuple[int, ...]:
            keep, wanted = params.truncate_prompt_tokens, params.max_tokens
            return truncated(self._token_ids(text, params, vocabulary), keep, max_tokens, wanted)

        read = read_prompt(prompt, encoder, max_tokens, sent_ids, self._bare_ids)
        room_for_answer(len(read.decoder), self._max_model_tokens)
        return read.decoder, read.sent, (read.part,)

    def _bare_ids(self, prompt: PlainPrompt) -> tuple[int, ...]:
        """Return a text's token ids without special tokens around it. Raises: RequestError"""
        if isinstance(prompt, str):
            verify_text(DECODER, prompt)
            own = self._vocabularies.own.tokenizer
            return tuple(own.encode(prompt, add_special_tokens=False))
        verify_ids(DECODER, prompt, self._vocabularies.own.num_tokens)
        return tuple(prompt)

    @property
    def media_words(self) -> dict[str, str]:
        """Return each kind of medium's placeholder text."""
        reader = self._reader
        return {} if reader is None else {kind: reader.placeholder(kind) for kind in reader.kinds}

    def is_quick(self, prompt: Prompt) -> bool:
        """Return whether a prompt is fast to prepare: a short one without media."""
        if isinstance(prompt, MediaPrompt | VectorPrompt | PlacedPrompt | EncoderPrompt):
            return False
        return len(prompt) <= INLINE_PROMPT_CHARS

    def read(self, prompt: MediaPrompt | VectorPrompt, adapter: str = "") -> PlacedPrompt:
        """Convert a prompt of media or vectors to token ids and parts, with the vocabulary of an
        adapter ("": none). Raises: RequestError"""
        return self._placed(prompt, self._vocabularies.of(adapter))

    def _placed(self, prompt: MediaPrompt | VectorPrompt, vocabulary: Vocabulary) -> PlacedPrompt:
        """Convert a prompt of media or vectors to token ids and parts. Raises: RequestError"""
        if isinstance(prompt, VectorPrompt):
            return placed_vectors(prompt, self._model, is_taken=self._takes_vectors)
        if self._reader is None:
            raise RequestError(
                "this model takes no images, video or sound.",
                where=PROMPT,
                fix="send text alone, or serve a model that takes media.",
                code="unsupported_media",
            )
        if isinstance(prompt.text, str):
            verify_text(PROMPT, prompt.text)
        self._verify_counts(prompt)
        found = placed(prompt, self._reader, vocabulary.tokenizer.encode)
        runs = [run for part in found.parts for run in part.place.runs]
        taken = {place for start, count in runs for place in range(start, start + count)}
        size = vocabulary.num_tokens
        verify_ids(PROMPT, (one for i, one in enumerate(found.token_ids) if i not in taken), size)
        self._verify_parts(found.parts)
        # Placeholder ids are embedded before they are replaced, so they must be in the vocabulary.
        ids = tuple(
            0 if i in taken and one >= size else one for i, one in enumerate(found.token_ids)
        )
        return PlacedPrompt(token_ids=ids, parts=found.parts)

    def _with_media(
        self, prompt: Prompt, params: SamplingParams, vocabulary: Vocabulary
    ) -> tuple[tuple[int, ...], tuple[PromptPart, ...]]:
        """Return a prompt's token ids and its media. Raises: RequestError"""
        assert not isinstance(prompt, EncoderPrompt), "the model has no encoder"
        if isinstance(prompt, MediaPrompt | VectorPrompt):
            prompt = self._placed(prompt, vocabulary)
        if not isinstance(prompt, PlacedPrompt):
            return self._truncated(self._token_ids(prompt, params, vocabulary), params), ()
        if prompt.parts and params.truncate_prompt_tokens is not None:
            raise RequestError(
                "a prompt with media cannot be truncated.", where="truncate_prompt_tokens"
            )
        if has_no_tokens(prompt) and params.prompt_logprobs is not None:
            raise RequestError("a prompt of vectors has no logprobs.", where="prompt_logprobs")
        room_for_answer(len(prompt.token_ids), self._max_model_tokens)
        return prompt.token_ids, prompt.parts

    def _verify_counts(self, prompt: MediaPrompt) -> None:
        """Raise RequestError for more media of a kind than a prompt may have."""
        counts = Counter(medium.kind for medium in prompt.media)
        for kind, limit in self._media_limits.items():
            if limit.count is not None and counts[kind] > limit.count:
                raise RequestError(
                    f"at most {limit.count} of the kind {kind} may be in one prompt, not "
                    f"{counts[kind]} (--limit-mm-per-prompt).",
                    where=PROMPT,
                    code="too_many_media",
                )

    def _verify_parts(self, parts: Iterable[PromptPart]) -> None:
        """Raise RequestError for media too large for one step, if each must fit into one."""
        limit = self._most_part_tokens
        for place in (part.place for part in parts):
            size = 0 if place.kind == VECTORS else place.end - place.start
            if limit is not None and size > limit:
                raise RequestError(
                    f"an item of the prompt has {size} positions, which one step must compute, and "
                    f"that has {limit} for one request.",
                    where=PROMPT,
                    fix="send a smaller one, or start the server with a higher "
                    "--max-num-batched-tokens or without --disable-chunked-mm-input.",
                    code="media_too_large",
                )

    def _token_ids(
        self, prompt: PlainPrompt, params: SamplingParams, vocabulary: Vocabulary
    ) -> tuple[int, ...]:
        """Return the prompt as token ids within the vocabulary. Of a long text that will be
        truncated only the end is tokenized."""
        if isinstance(prompt, str):
            verify_text(PROMPT, prompt)
            max_tokens = self._max_model_tokens
            ids = encoded(
                vocabulary.tokenizer,
                prompt,
                add_special_tokens=True,
                max_tokens=max_tokens,
                keep=max_kept_tokens(params.truncate_prompt_tokens, max_tokens),
            )
            return tuple(ids)
        prompt_ids = tuple(prompt)
        verify_ids(PROMPT, prompt_ids, vocabulary.num_tokens)
        return prompt_ids

    def _truncated(self, prompt_ids: tuple[int, ...], params: SamplingParams) -> tuple[int, ...]:
        """Return the truncated prompt, checked to leave room for an answer."""
        prompt_ids = truncated(
            prompt_ids, params.truncate_prompt_tokens, self._max_model_tokens, params.max_tokens
        )
        room_for_answer(len(prompt_ids), self._max_model_tokens)
        return prompt_ids


def load_tokenizer(spec: EngineSpec, folder: str = "") -> Tokenizer:
    """Return the model's or an adapter folder's tokenizer. Raises: ConfigError naming the file"""
    tokenizer: Tokenizer = registry.make(spec.tokenizer, folder or spec.tokenizer_path)
    return tokenizer
