"""Shared base of models whose media are encoded one item at a time and inserted into the prompt."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence

import torch
from torch import nn

from dovetail.interfaces.data.media import PartPlace
from dovetail.layers.media import blocks_of, spatial_positions


class OneByOne:
    """Encodes contents and numbers prompts. `_is_spatial`: the text model has positions in three
    directions."""

    _is_spatial: bool
    encoder: nn.Module

    @abstractmethod
    def encode_one(self, kind: str, features: Mapping[str, torch.Tensor]) -> torch.Tensor:
        """Return the vectors of a content. Shapes: [rows, E]"""

    def encode(
        self, kind: str, features: Sequence[Mapping[str, torch.Tensor]]
    ) -> Sequence[torch.Tensor]:
        """Return the vectors of media items, each encoded alone, so independent of other items.

        Shapes: each [rows, E]
        """
        return [self.encode_one(kind, one) for one in features]

    def encoder_blocks(self) -> Sequence[nn.Module]:
        """Return the blocks before which a pass of the encoder may pause."""
        return blocks_of(self.encoder)

    def prompt_positions(
        self, num_tokens: int, parts: Sequence[PartPlace]
    ) -> tuple[torch.Tensor, int] | None:
        """Return the positions of a prompt in three directions, if the text model uses them.

        Shapes: [3, num_tokens]
        """
        return spatial_positions(num_tokens, parts) if self._is_spatial else None
