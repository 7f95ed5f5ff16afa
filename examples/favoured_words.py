"""A logits processor in one file: it claims fields of requests, and is given the tokenizer.

It makes the tokens of some words more or less likely, while the answer is short of a number of
tokens. Serve it and send its fields:

    dovetail serve --logits-processors examples/favoured_words.py:FavouredWords
    curl -s http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \
        -d '{"prompt": "la la la", "max_tokens": 16, "favoured_words": {"la": -100, " la": -100}}'
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from dovetail.errors import RequestError
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.logits import LogitsProcessor, RowTokens
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail.registry import register

if TYPE_CHECKING:
    import torch

WORDS, UNTIL = "favoured_words", "favoured_until"
BIASES = "favoured_ids"
MAX_BIAS = 100
NO_LIMIT = 1 << 31


@register("logits_processor", "favoured_words")
class FavouredWords(LogitsProcessor):
    """Adds a bias to the logits of each token of some words."""

    info = Info(summary="makes words more or less likely")
    stage = "bias"
    claims = {
        WORDS: "words, and what is added to the logits of their tokens",
        UNTIL: "the length of the answer, in tokens, from which nothing is added",
    }

    def __init__(self, options: Any, vocab_size: int) -> None:
        super().__init__(options, vocab_size)
        self._rows: dict[int, RowTokens] = {}

    @classmethod
    def wants(cls, params: SamplingParams) -> bool:
        """Return whether the request favours words."""
        return bool(params.extra_args.get(WORDS))

    @classmethod
    def verify(cls, params: SamplingParams, vocab_size: int) -> None:
        """Check the fields. Raises: RequestError"""
        words = params.extra_args.get(WORDS, {})
        if not isinstance(words, Mapping) or not all(map(_is_bias, words.values())):
            what = f"must map words to numbers from {-MAX_BIAS} to {MAX_BIAS}."
            raise RequestError(what, where=WORDS)
        until = params.extra_args.get(UNTIL, 0)
        if isinstance(until, bool) or not isinstance(until, int) or until < 0:
            raise RequestError("must be a number of tokens.", where=UNTIL)

    @classmethod
    def prepared(cls, params: SamplingParams, tokenizer: Tokenizer) -> SamplingParams:
        """Return the params with the token ids of the words."""
        found: dict[str, float] = {}
        for word, bias in params.extra_args[WORDS].items():
            ids = tokenizer.encode(word, add_special_tokens=False)
            found |= {str(token_id): float(bias) for token_id in ids}
        return msgspec.structs.replace(params, extra_args={**params.extra_args, BIASES: found})

    def add_row(self, tokens: RowTokens) -> None:
        """Start a row."""
        self._rows[tokens.row] = tokens

    def remove_row(self, row: int) -> None:
        """Forget a row."""
        self._rows.pop(row, None)

    def apply(self, logits: torch.Tensor, rows: Sequence[tuple[int, int]]) -> None:
        """Add the biases. Shapes: logits [S, V]. Mutates: logits"""
        for index, row in rows:
            tokens = self._rows[row]
            sent = tokens.params.extra_args
            if len(tokens.output_ids) < sent.get(UNTIL, NO_LIMIT):
                for token_id, bias in sent.get(BIASES, {}).items():
                    logits[index, int(token_id)] += bias


def _is_bias(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and abs(value) <= MAX_BIAS
