"""A logits processor in one file: it claims fields of requests, and is given the tokenizer.

DRY ("don't repeat yourself") makes the token less likely that would continue a repetition of what
the answer already has. Serve it and send its fields:

    dovetail serve --logits-processors examples/dry.py:Dry
    curl -s http://127.0.0.1:8000/v1/completions -H 'Content-Type: application/json' \
        -d '{"prompt": "la la la", "max_tokens": 16, "dry_multiplier": 0.8}'

Source: the description of DRY at https://github.com/oobabooga/text-generation-webui/pull/5677.
"""

from __future__ import annotations

from collections.abc import Sequence
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

BREAKERS = ("\n", ":", '"', "*")
BREAKER_IDS = "dry_breaker_ids"
MAX_MATCH = 64


@register("logits_processor", "dry")
class Dry(LogitsProcessor):
    """Lowers the logit of each token that would continue a repetition."""

    info = Info(summary="makes tokens less likely that would continue a repetition")
    stage = "bias"
    claims = {
        "dry_multiplier": "how strong the penalty is; 0 switches it off",
        "dry_base": "by how much each further token of a repetition multiplies the penalty",
        "dry_allowed_length": "repetitions up to this many tokens cost nothing",
        "dry_sequence_breakers": "texts across which nothing is a repetition",
    }

    def __init__(self, options: Any, vocab_size: int) -> None:
        super().__init__(options, vocab_size)
        self._rows: dict[int, RowTokens] = {}

    @classmethod
    def wants(cls, params: SamplingParams) -> bool:
        """Return whether the request sets dry_multiplier."""
        return bool(params.extra_args.get("dry_multiplier"))

    @classmethod
    def verify(cls, params: SamplingParams, vocab_size: int) -> None:
        """Check the fields. Raises: RequestError"""
        bounds = {"dry_multiplier": (0, 100), "dry_base": (1, 100), "dry_allowed_length": (0, 1000)}
        for name, (least, most) in bounds.items():
            value = params.extra_args.get(name, least)
            is_number = isinstance(value, int | float) and not isinstance(value, bool)
            if not is_number or not least <= value <= most:
                raise RequestError(f"must be from {least} to {most}, not {value!r}.", where=name)
        breakers = params.extra_args.get("dry_sequence_breakers", BREAKERS)
        is_list = isinstance(breakers, list | tuple)
        if not is_list or not all(isinstance(one, str) for one in breakers):
            raise RequestError("must be a list of texts.", where="dry_sequence_breakers")

    @classmethod
    def prepared(cls, params: SamplingParams, tokenizer: Tokenizer) -> SamplingParams:
        """Return the params with the last token of each breaker."""
        texts = params.extra_args.get("dry_sequence_breakers", BREAKERS)
        found = [tokenizer.encode(text, add_special_tokens=False) for text in texts]
        ids = [one[-1] for one in found if one]
        return msgspec.structs.replace(params, extra_args={**params.extra_args, BREAKER_IDS: ids})

    def add_row(self, tokens: RowTokens) -> None:
        """Start a row."""
        self._rows[tokens.row] = tokens

    def remove_row(self, row: int) -> None:
        """Forget a row."""
        self._rows.pop(row, None)

    def apply(self, logits: torch.Tensor, rows: Sequence[tuple[int, int]]) -> None:
        """Lower what would repeat. Shapes: logits [S, V]. Mutates: logits"""
        for index, row in rows:
            tokens = self._rows[row]
            asked = tokens.params.extra_args
            lengths = repeated(list(tokens.output_ids), frozenset(asked.get(BREAKER_IDS, ())))
            allowed = asked.get("dry_allowed_length", 2)
            for token_id, length in lengths.items():
                if length >= allowed:
                    power = asked.get("dry_base", 1.75) ** (length - allowed)
                    logits[index, token_id] -= asked["dry_multiplier"] * power


def repeated(ids: Sequence[int], breakers: frozenset[int]) -> dict[int, int]:
    """Return each token that would continue a repetition, with the length of what it continues."""
    found: dict[int, int] = {}
    for end in range(1, len(ids)):
        length = 0
        while (
            length < min(end, MAX_MATCH)
            and ids[end - 1 - length] == ids[-1 - length]
            and ids[-1 - length] not in breakers
        ):
            length += 1
        if length and ids[end] not in breakers:
            found[ids[end]] = max(found.get(ids[end], 0), length)
    return found
