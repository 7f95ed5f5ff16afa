"""ParamsReader: sampling params, checked against the model, its vocabulary and its processors."""

from __future__ import annotations

import re
from collections.abc import Sequence

import msgspec

from dovetail import registry
from dovetail.engine.client.requests.prompt_checks import verify_ids, verify_text
from dovetail.engine.client.text.no_tokenizer import text_refused
from dovetail.engine.client.text.vocabularies import Vocabulary
from dovetail.engine.context_length import max_tokens_within
from dovetail.errors import RequestError
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.interfaces.logits import LogitsProcessor
from dovetail.interfaces.tokenizer import Tokenizer

MAX_NAME_CHARS = 256


class ParamsReader:
    """Checks and completes sampling params. Used by several threads; stores no request."""

    def __init__(self, spec: EngineSpec) -> None:
        self._max_model_tokens = spec.run.max_model_tokens
        self._max_logprobs = spec.max_logprobs
        self._has_tokenizer = spec.has_tokenizer
        pattern = spec.processor_pattern
        self._pattern = None if pattern is None else re.compile(pattern)
        self._processors: dict[str, type[LogitsProcessor]] = {
            selection.name: registry.admin.load_selection(selection)
            for selection in spec.run.logits_processors
        }
        self._conditions = [registry.admin.load_selection(one) for one in spec.stop_conditions]

    def read(self, params: SamplingParams, vocabulary: Vocabulary) -> SamplingParams:
        """Return the params with their declared types, prepared by the logits processors. Raises:
        RequestError naming the field that is wrong"""
        params = _typed(params)
        params.verify()
        self._verify(params, vocabulary)
        return self._prepared(params, vocabulary.tokenizer)

    def completed(
        self, params: SamplingParams, num_prompt_tokens: int, vocabulary: Vocabulary
    ) -> SamplingParams:
        """Return the params with everything the engine needs filled in. Raises: RequestError"""
        room = self._max_model_tokens - num_prompt_tokens
        max_tokens = max_tokens_within(room, params.max_tokens, params.min_tokens)
        return msgspec.structs.replace(
            params,
            max_tokens=max_tokens,
            logprobs=0 if params.logprob_token_ids else _counted(params.logprobs, vocabulary),
            prompt_logprobs=_counted(params.prompt_logprobs, vocabulary),
            eos_token_ids=params.eos_token_ids or vocabulary.eos_token_ids,
            bad_words_token_ids=params.bad_words_token_ids
            + self._bad_word_ids(params.bad_words, vocabulary),
        )

    def _bad_word_ids(
        self, words: Sequence[str], vocabulary: Vocabulary
    ) -> tuple[tuple[int, ...], ...]:
        """Return the token sequences of each word, at the start of a text and after a space. Those
        with an id that the model has no row for are omitted, since it cannot generate them."""
        sequences: dict[tuple[int, ...], None] = {}
        for word in words:
            bare = word.lstrip()
            if not bare:
                raise RequestError("a word must not be empty or white space.", where="bad_words")
            for text in (bare, " " + bare):
                ids = vocabulary.tokenizer.encode(text, add_special_tokens=False)
                sequences[tuple(ids)] = None
        return tuple(ids for ids in sequences if ids and max(ids) < vocabulary.num_tokens)

    def _verify(self, params: SamplingParams, vocabulary: Vocabulary) -> None:
        """Check what depends on the model, the tokenizer or the plugins. Raises: RequestError"""
        for field in ("stop", "bad_words"):
            texts = getattr(params, field)
            for text in texts:
                verify_text(field, text)
            if texts and not self._has_tokenizer:
                raise text_refused(field)
        if params.stop and not params.detokenize:
            raise RequestError("stop strings need detokenize to be true.", where="stop")
        size = vocabulary.num_tokens
        verify_ids("stop_token_ids", params.stop_token_ids, size)
        verify_ids("logprob_token_ids", params.logprob_token_ids, size)
        verify_ids("logit_bias", params.logit_bias, size)
        verify_ids("allowed_token_ids", params.allowed_token_ids or (), size)
        for ids in params.bad_words_token_ids:
            verify_ids("bad_words_token_ids", ids, size)
        if not params.logprob_token_ids:
            self._verify_num_logprobs("logprobs", _counted(params.logprobs, vocabulary))
        self._verify_num_logprobs("prompt_logprobs", _counted(params.prompt_logprobs, vocabulary))
        self._verify_processors(params, size)

    def _verify_num_logprobs(self, field: str, wanted: int | None) -> None:
        if wanted is None or self._max_logprobs == -1:
            return
        if wanted > self._max_logprobs:
            raise RequestError(
                f"at most {self._max_logprobs} are given, not {wanted}.",
                where=field,
                fix="ask for fewer, or start the server with a higher --max-logprobs.",
            )

    def _verify_processors(self, params: SamplingParams, vocab_size: int) -> None:
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
        wanted = [one for one in self._processors.values() if one.wants(params)]
        if params.thinking is not None and all(one.field != "thinking" for one in wanted):
            raise RequestError("no processor limits reasoning.", where="thinking_token_budget")
        for processor in wanted:
            processor.verify(params, vocab_size)
        for condition in self._conditions:
            condition.verify(params)

    def _prepared(self, params: SamplingParams, tokenizer: Tokenizer) -> SamplingParams:
        """Return the params prepared by the logits processors. Raises: RequestError"""
        for processor in self._processors.values():
            if processor.wants(params):
                params = processor.prepared(params, tokenizer)
        return params


def _counted(num_logprobs: int | None, vocabulary: Vocabulary) -> int | None:
    """Return how many logprobs are wanted, with -1 as the vocabulary size."""
    return vocabulary.num_tokens if num_logprobs == -1 else num_logprobs


def _typed(params: SamplingParams) -> SamplingParams:
    """Return the params with every field of its declared type (lists become tuples).

    Raises: RequestError naming the field. Python callers have no other type check.
    """
    try:
        return msgspec.convert(msgspec.to_builtins(params), SamplingParams)
    except msgspec.ValidationError as error:
        what, _, path = str(error).partition(" - at `$.")
        raise RequestError(f"{what}.", where=path.rstrip("`") or "sampling params") from None
    except (TypeError, OverflowError, UnicodeError) as error:
        raise RequestError(f"{error}.", where="sampling params") from None
