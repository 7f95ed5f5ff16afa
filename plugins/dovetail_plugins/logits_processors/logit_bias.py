"""LogitBias: adds a request's own numbers to the logits of tokens it names."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.logits import LogitsProcessor, RowTokens
from dovetail.interfaces.plugin import Info
from dovetail_plugins.logits_processors._ids import places, verify_ids

if TYPE_CHECKING:
    import torch


class LogitBias(LogitsProcessor):
    """Adds `SamplingParams.logit_bias` (-100 to 100) before penalties and temperature."""

    info = Info(summary="adds a bias to the logits of given token ids")
    stage = "bias"

    def __init__(self, options: Any, vocab_size: int) -> None:
        super().__init__(options, vocab_size)
        self._biases: dict[int, dict[int, float]] = {}

    @classmethod
    def wants(cls, params: SamplingParams) -> bool:
        """Return whether the request has biases."""
        return bool(params.logit_bias)

    @classmethod
    def verify(cls, params: SamplingParams, vocab_size: int) -> None:
        """Raises: RequestError when an id is outside the vocabulary."""
        verify_ids(params.logit_bias, vocab_size, "logit_bias")

    def add_row(self, tokens: RowTokens) -> None:
        """Keep the row's ids and biases."""
        self._biases[tokens.row] = dict(tokens.params.logit_bias)

    def remove_row(self, row: int) -> None:
        """Forget the row's biases."""
        self._biases.pop(row, None)

    def apply(self, logits: torch.Tensor, rows: Sequence[tuple[int, int]]) -> None:
        """Add the biases. Shapes: logits [S, V]. Mutates: logits"""
        from dovetail_kernels.sample.seen import on_device

        ids = {index: list(self._biases[row]) for index, row in rows}
        values = [value for _, row in rows for value in self._biases[row].values()]
        # Ids are distinct within a row, so no sum depends on the order of additions.
        logits[places(ids, logits.device)] += on_device(
            np.array(values, dtype=np.float32), logits.device
        )
