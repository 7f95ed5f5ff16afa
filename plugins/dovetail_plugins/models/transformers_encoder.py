"""TransformersEncoder: an encoder of transformers, its code unchanged, for vectors and classes.

Each text of a step runs alone, so nothing is padded: a text's numbers are the same in any batch.
Unsupported models are refused with the reason: see `_hf_encoder`.
"""

from __future__ import annotations

import logging
import math
from itertools import pairwise

import torch
from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import CLASSES
from dovetail.interfaces.model import BuildContext, Model, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.context import forward_context
from dovetail.layers.dtypes import dtype_of
from dovetail_plugins.models._hf_encoder import build_encoder
from dovetail_plugins.models._hf_swap import store_buffers

log = logging.getLogger(__name__)


class TransformersEncoder(nn.Module, Model):
    """transformers' encoder with its own head. Its hidden states are the last layer's, or the
    numbers of the classes."""

    capabilities = frozenset({"needs_host_rows"})
    whole_because = "transformers builds all layers"
    info = Info(
        summary="any encoder of transformers, for vectors, classes, and classes of tokens",
        source="https://huggingface.co/docs/transformers/model_doc/auto",
    )

    def __init__(self, options: object, context: BuildContext) -> None:
        super().__init__()
        self._built = build_encoder(context)
        self._dtype = dtype_of(context.model.dtype)
        self._has_one_answer = context.model.head == CLASSES
        self.whole: nn.Module = self._built.model
        store_buffers(self)

    def weight_map(self) -> WeightMap:
        """Return the names: transformers' own, which the base model's may precede."""
        renamings = self._built.renamings
        first = [(old[1:], f"whole.{new}") for old, new in renamings if old[0] == "^"]
        starts = [(start, "whole.") for start in self._built.starts]
        tied = self._built.model.all_tied_weights_keys
        return WeightMap(
            prefixes=(*first, *starts, ("", "whole.")),
            renames=tuple((old, new) for old, new in renamings if old[0] != "^"),
            tied={f"whole.{a}": f"whole.{b}" for a, b in tied.items()},
            conversion=self._built.conversion,
        )

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the states, or classes, of each token. Shapes: token_ids, positions [T] ->
        [T, E or C]"""
        starts = (positions == 0).nonzero().flatten().tolist()
        counts = [end - start for start, end in pairwise([*starts, len(token_ids)])]
        second = forward_context().second_text
        marks = [None] * len(counts) if second is None else second.split(counts)
        texts = token_ids.split(counts)
        return torch.cat([self._states(*pair) for pair in zip(texts, marks, strict=True)])

    def _states(self, token_ids: torch.Tensor, second: torch.Tensor | None) -> torch.Tensor:
        """Return a text's states; numbers that are none, which end its request alone, if the code
        fails. Shapes: token_ids, second [T] -> [T, E or C]"""
        try:
            return self._built.call(token_ids, second)
        except (MemoryError, torch.OutOfMemoryError):
            raise
        except Exception as error:
            log.error(
                "%s fails for a text of %d tokens: %s: %s",
                *(type(self.whole).__name__, len(token_ids), type(error).__name__, error),
            )
            shape = (len(token_ids), self._built.size)
            return token_ids.new_full(shape, math.nan, dtype=self._dtype)

    def classes(self, pooled: torch.Tensor) -> torch.Tensor:
        """Return the numbers of the classes, which `forward` computed. Shapes: [S, C] -> [S, C]

        Raises: ConfigError for classes of tokens that are known of whole texts alone
        """
        if self._has_one_answer and len(pooled) > 1:
            raise ConfigError(
                "its class in transformers tells classes of whole texts, not of their tokens.",
                where="task",
                fix="ask for the task classify.",
            )
        return pooled
