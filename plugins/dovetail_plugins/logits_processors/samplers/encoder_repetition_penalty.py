"""EncoderRepetitionPenalty: makes the tokens of the prompt more likely, so that answers stay with
it.

Source: the option of this name of transformers' `generate` ("hallucination penalty"), the inverse
of the repetition penalty of Keskar et al., "CTRL", 2019, on the prompt.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from dovetail.interfaces.logits import RowTokens
from dovetail.interfaces.plugin import Info
from dovetail_plugins.logits_processors._ids import places
from dovetail_plugins.logits_processors.samplers._sampler import Rows, Sampler, Setting, Values

if TYPE_CHECKING:
    import torch

FIELD = "encoder_repetition_penalty"


class EncoderRepetitionPenalty(Sampler):
    """Multiplies positive logits of the prompt's tokens by the penalty, and divides negative
    ones."""

    info = Info(
        summary="makes the tokens of the prompt more likely",
        source="https://huggingface.co/docs/transformers/internal/generation_utils",
    )
    stage = "bias"
    is_by_value = False
    settings = {
        FIELD: Setting(
            what="the factor of the prompt's tokens; 1: none", default=1.0, low=1e-3, high=100.0
        )
    }

    def __init__(self, options: Any, vocab_size: int) -> None:
        super().__init__(options, vocab_size)
        self._ids: dict[int, np.ndarray] = {}

    @classmethod
    def is_on(cls, values: Values) -> bool:
        """Return whether there is a factor."""
        return values[FIELD] != 1.0

    def add_row(self, tokens: RowTokens) -> None:
        """Note the tokens of the prompt."""
        super().add_row(tokens)
        self._ids[tokens.row] = np.unique(np.asarray(tokens.prompt_ids, dtype=np.int64))

    def remove_row(self, row: int) -> None:
        """Forget a row; unknown rows are ignored."""
        super().remove_row(row)
        self._ids.pop(row, None)

    def shaped(self, logits: torch.Tensor, batch: Rows) -> torch.Tensor:
        """Return the logits with the prompt's tokens raised. Mutates: logits"""
        import torch

        ids = {index: self._ids[one.tokens.row] for index, one in enumerate(batch.rows)}
        at = places(ids, logits.device)
        factors = batch.column(FIELD).flatten().float()[at[0]]
        values = logits[at]
        logits[at] = torch.where(values > 0, values * factors, values / factors)
        return logits
