"""RepeatLastN: the repetition, presence and frequency penalties over the last n tokens alone.

Source: the option of this name in the API page of llama.cpp's server; the penalty is that of Keskar
et al., "CTRL", 2019.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.logits import RowTokens
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail_plugins.logits_processors._ids import places
from dovetail_plugins.logits_processors.samplers._sampler import (
    ORDERED,
    Rows,
    Sampler,
    Setting,
    Values,
)

if TYPE_CHECKING:
    import torch

FIELD = "repeat_last_n"
RANGE = "repetition_penalty_range"
MOVED = "windowed_penalties"
"""The entry of `extra_args` for penalties that this does in the sampler's place."""
NEUTRAL = {"repetition_penalty": 1.0, "presence_penalty": 0.0, "frequency_penalty": 0.0}
WHOLE = -1
"""The whole text: of it, the presence and frequency penalties count the answer alone."""
MAX_TOKENS = 1 << 31


class RepeatLastN(Sampler):
    """Does the penalties in the sampler's place, at its place. A window counts the tokens of the
    prompt that it reaches, for all three."""

    info = Info(
        summary="penalties over the last n tokens alone",
        source="https://github.com/ggml-org/llama.cpp/blob/master/tools/server/README.md",
    )
    stage = "bias"
    rank = 1
    is_by_value = False
    settings = {
        FIELD: Setting(
            what="the penalties count this many tokens; 0: none, -1: all",
            default=WHOLE, low=WHOLE, high=MAX_TOKENS, is_whole=True,
        ),
        RANGE: Setting(
            what="the same as repeat_last_n, but 0 is the whole text",
            default=0, low=WHOLE, high=MAX_TOKENS, is_whole=True, others=("rep_pen_range",),
        ),
    }  # fmt: skip

    @classmethod
    def values_of(cls, params: SamplingParams) -> Values:
        """Return the window and the penalties. Raises: RequestError"""
        found = super().values_of(params)
        window = found[FIELD] if found[FIELD] != WHOLE else found[RANGE] or WHOLE
        own = params.extra_args.get(MOVED) or {name: getattr(params, name) for name in NEUTRAL}
        return {FIELD: window, **own}

    @classmethod
    def is_on(cls, values: Values) -> bool:
        """Return whether there is a penalty."""
        return any(values[name] != neutral for name, neutral in NEUTRAL.items())

    @classmethod
    def wants(cls, params: SamplingParams) -> bool:
        """Return whether there is a window, or another sampler has moved the penalties here."""
        is_moved = MOVED in params.extra_args and ORDERED not in params.extra_args
        return is_moved or super().wants(params)

    @classmethod
    def takes_part(cls, params: SamplingParams) -> bool:
        """Return whether it does the penalties. Raises: RequestError"""
        values = cls.values_of(params)
        return cls.is_on(values) and (MOVED in params.extra_args or values[FIELD] != WHOLE)

    @classmethod
    def prepared(cls, params: SamplingParams, tokenizer: Tokenizer) -> SamplingParams:
        """Return the params with penalties that the sampler does not see; none for a window of 0,
        and all as they are for the whole text."""
        window = cls.values_of(params)[FIELD]
        if window == WHOLE or MOVED in params.extra_args:
            return params
        return moved(params) if window else msgspec.structs.replace(params, **NEUTRAL)

    def shaped(self, logits: torch.Tensor, batch: Rows) -> torch.Tensor:
        """Return the penalised logits. Shapes: [S, V] -> [S, V]. Mutates: logits"""
        import torch

        seen = [_seen(one.tokens, one.values) for one in batch.rows]
        at = places({i: ids for i, (ids, _, _) in enumerate(seen)}, logits.device)
        factor, minus = (
            torch.from_numpy(np.concatenate([one[which] for one in seen])).to(logits.device)
            for which in (1, 2)
        )
        values = logits[at]
        logits[at] = torch.where(values > 0, values / factor, values * factor) - minus
        return logits


def moved(params: SamplingParams) -> SamplingParams:
    """Return the params with their penalties in `extra_args`, where the sampler does not see
    them."""
    if MOVED in params.extra_args:
        return params
    own = {name: getattr(params, name) for name in NEUTRAL}
    return msgspec.structs.replace(params, **NEUTRAL, extra_args={**params.extra_args, MOVED: own})


def _seen(tokens: RowTokens, values: Values) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return the distinct tokens of the window, the factor of each, and what is subtracted."""
    prompt = np.asarray(tokens.prompt_ids, dtype=np.int64)
    output = np.asarray(tokens.output_ids, dtype=np.int64)
    window = int(values[FIELD])
    if window == WHOLE:
        prompt = prompt if values["repetition_penalty"] != 1.0 else prompt[:0]
        ids, where = np.unique(np.concatenate([prompt, output]), return_inverse=True)
        counts = np.bincount(where[len(prompt) :], minlength=len(ids))
    else:
        text = np.concatenate([prompt[max(0, len(prompt) + len(output) - window) :], output])
        ids, counts = np.unique(text[-window:], return_counts=True)
    minus = values["frequency_penalty"] * counts + values["presence_penalty"] * (counts > 0)
    factor = np.full(len(ids), values["repetition_penalty"], dtype=np.float32)
    return ids, factor, minus.astype(np.float32)
