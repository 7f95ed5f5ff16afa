"""Dry: makes a token less likely that would continue a repetition, the more the longer it is.

Source: p-e-w, "DRY: A modern repetition penalty", 2024,
https://github.com/oobabooga/text-generation-webui/pull/5677; the window is that of the API page of
llama.cpp's server.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dovetail.errors import RequestError
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.logits import ProcessorContext, RowTokens
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail.json_values import InvalidJson, json_value
from dovetail_plugins.logits_processors._ids import places
from dovetail_plugins.logits_processors.samplers._repeats import Breakers, Repeats
from dovetail_plugins.logits_processors.samplers._sampler import Rows, Sampler, Setting, Values
from dovetail_plugins.logits_processors.samplers.repeat_last_n import NEUTRAL, moved

if TYPE_CHECKING:
    import torch

BREAKERS = "dry_sequence_breakers"
DEFAULT_BREAKERS = ("\n", ":", '"', "*")
MAX_BREAKERS = 256
MAX_BREAKER_CHARS = 128
WHOLE = -1
LARGEST = 1e9
"""The penalty of what may never come: float32 logits stay finite."""


class Dry(Sampler):
    """A token that would continue a repetition of n tokens loses multiplier x base^(n - allowed),
    if n is at least the allowed length. Nothing repeats across a breaker, which is found in the
    text, however it is split into tokens."""

    info = Info(
        summary="makes tokens less likely that would continue a repetition",
        source="https://github.com/oobabooga/text-generation-webui/pull/5677",
    )
    stage = "bias"
    rank = 2
    is_by_value = False
    settings = {
        "dry_multiplier": Setting(
            what="how strong the penalty is; 0: none", default=0.0, low=0.0, high=100.0
        ),
        "dry_base": Setting(
            what="by how much each further token multiplies the penalty",
            default=1.75, low=1.0, high=100.0,
        ),
        "dry_allowed_length": Setting(
            what="shorter repetitions cost nothing", default=2, low=1, high=1 << 20, is_whole=True
        ),
        "dry_penalty_last_n": Setting(
            what="how many of the last tokens are searched; 0: none, -1: all",
            default=WHOLE, low=WHOLE, high=1 << 31, is_whole=True,
        ),
        "dry_range": Setting(
            what="the same as dry_penalty_last_n, but 0 is the whole text",
            default=0, low=0, high=1 << 31, is_whole=True,
        ),
    }  # fmt: skip
    claims = {BREAKERS: "texts across which nothing is a repetition"}

    def __init__(self, options: Any, vocab_size: int) -> None:
        super().__init__(options, vocab_size)
        self._repeats: dict[int, Repeats] = {}

    def set_up(self, context: ProcessorContext) -> None:
        """Note how the vocabulary is read. Mutates: self"""
        self._vocabulary = context.vocabulary

    @classmethod
    def values_of(cls, params: SamplingParams) -> Values:
        """Return the settings, checked together with the breakers. Raises: RequestError"""
        breakers_of(params)
        found = dict(super().values_of(params))
        own_range = found.pop("dry_range")
        if found["dry_penalty_last_n"] == WHOLE and own_range:
            found["dry_penalty_last_n"] = own_range
        return found

    @classmethod
    def is_on(cls, values: Values) -> bool:
        """Return whether there is a penalty, and a text to search."""
        return values["dry_multiplier"] > 0.0 and values["dry_penalty_last_n"] != 0.0

    @classmethod
    def prepared(cls, params: SamplingParams, tokenizer: Tokenizer) -> SamplingParams:
        """Return the params with penalties that come first, before the sampler's place for them."""
        has_penalties = any(getattr(params, name) != value for name, value in NEUTRAL.items())
        return moved(params) if has_penalties else params

    def add_row(self, tokens: RowTokens) -> None:
        """Search the text so far. Raises: RequestError if breakers need a vocabulary that is not
        there"""
        super().add_row(tokens)
        texts = breakers_of(tokens.params)
        breakers = Breakers(texts, self._vocabulary() if texts else None)
        window = int(self.rows[tokens.row].values["dry_penalty_last_n"])
        self._repeats[tokens.row] = Repeats(tokens, breakers, None if window == WHOLE else window)

    def remove_row(self, row: int) -> None:
        """Forget a row; unknown rows are ignored."""
        super().remove_row(row)
        self._repeats.pop(row, None)

    def shaped(self, logits: torch.Tensor, batch: Rows) -> torch.Tensor:
        """Return the penalised logits. Shapes: [S, V] -> [S, V]. Mutates: logits"""
        import torch

        found = [self._penalties(one.tokens.row, one.values) for one in batch.rows]
        if not any(len(ids) for ids, _ in found):
            return logits
        at = places({i: ids for i, (ids, _) in enumerate(found)}, logits.device)
        minus = np.concatenate([one for _, one in found]).astype(np.float32)
        logits[at] -= torch.from_numpy(minus).to(logits.device)
        return logits

    def _penalties(self, row: int, values: Values) -> tuple[np.ndarray, np.ndarray]:
        """Return the tokens that would continue a repetition, and what they lose."""
        allowed = int(values["dry_allowed_length"])
        ids, lengths = self._repeats[row].continued(allowed)
        is_known = ids < self.vocab_size
        power = np.minimum((lengths[is_known] - allowed) * np.log(values["dry_base"]), 60.0)
        minus = np.minimum(values["dry_multiplier"] * np.exp(power), LARGEST)
        return ids[is_known], minus


def breakers_of(params: SamplingParams) -> tuple[str, ...]:
    """Return the breakers of a request: a list, or one written in JSON. Raises: RequestError"""
    value = params.extra_args.get(BREAKERS)
    if value is None:
        return DEFAULT_BREAKERS
    if isinstance(value, str):
        try:
            value = json_value(value) if value.strip() else []
        except InvalidJson:
            value = None
    if not isinstance(value, list | tuple) or not all(isinstance(one, str) for one in value):
        raise RequestError("must be a list of texts.", where=BREAKERS)
    if len(value) > MAX_BREAKERS or any(len(one) > MAX_BREAKER_CHARS for one in value):
        what = f"at most {MAX_BREAKERS} texts of {MAX_BREAKER_CHARS} characters."
        raise RequestError(what, where=BREAKERS)
    return tuple(one for one in value if one)
