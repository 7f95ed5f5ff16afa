"""Per-layer inputs: each layer also reads a small vector per token, partly looked up, partly
computed from the token's embedding.

Source: Gemma Team, Gemma 3n, 2025.
"""

from __future__ import annotations

import torch
from torch import nn

from dovetail.interfaces.model import BuildContext
from dovetail.layers.activation import activation
from dovetail.layers.context import step_media
from dovetail.layers.decoder import DecoderConfig
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.embedding import VocabParallelEmbedding
from dovetail.layers.linear import ReplicatedLinear
from dovetail.layers.norm import RMSNorm

NAMES = (
    ("embed_tokens_per_layer.", "layer_inputs.table."),
    ("per_layer_model_projection.", "layer_inputs.projection."),
    ("per_layer_projection_norm.", "layer_inputs.norm."),
    ("post_per_layer_input_norm.", "layer_input.norm."),
    ("per_layer_input_gate.", "layer_input.gate."),
    ("per_layer_projection.", "layer_input.project."),
)
"""The checkpoints' names of the parts -> the names here."""
INPUT_PARTS = tuple(name.removesuffix(".") for name, _ in NAMES[:3])
"""The checkpoints' names of the parts that a text model has once."""


class LayerInputs(nn.Module):
    """Makes the inputs of all layers. Shape letters: L layers, P numbers for each."""

    def __init__(self, context: BuildContext, config: DecoderConfig) -> None:
        super().__init__()
        model, settings = context.model, context.model.hf_config
        size = int(settings["hidden_size_per_layer_input"])
        self._num_ids = int(settings["vocab_size_per_layer_input"])
        self._padding = int(settings.get("pad_token_id") or 0)
        self._shape, self._factor = (model.num_layers, size), model.hidden_size**-0.5
        width = model.num_layers * size
        rounded = torch.tensor(size**0.5, dtype=dtype_of(model.dtype))
        self.table = VocabParallelEmbedding(
            context,
            self._num_ids,
            width,
            name="model.embed_tokens_per_layer",
            factor=float(rounded),
        )
        name = "model.per_layer_model_projection"
        self.projection = ReplicatedLinear(context, name, model.hidden_size, width)
        self.norm = RMSNorm(context, size, eps=config.norm_eps)

    def forward(self, token_ids: torch.Tensor, embedded: torch.Tensor) -> torch.Tensor:
        """Return every layer's input; an id beyond the end of the table counts as 0, a place of
        media as padding.

        Shapes: token_ids [T], embedded [T, E] -> [T, L, P]
        """
        known = torch.where(token_ids < self._num_ids, token_ids, 0)
        media = step_media()
        if media is not None:
            known = known.index_fill(0, media.places, self._padding)
        looked_up = self.table(known).unflatten(-1, self._shape)
        projected = (self.projection(embedded) * self._factor).unflatten(-1, self._shape)
        total: torch.Tensor = (self.norm(projected) + looked_up) * 2**-0.5
        return total


class LayerInput(nn.Module):
    """A layer's transformation of its input: norm(project(act(gate(x)) * input))."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig) -> None:
        super().__init__()
        size = int(context.model.hf_config["hidden_size_per_layer_input"])
        hidden = context.model.hidden_size
        self.gate = ReplicatedLinear(context, f"{name}.per_layer_input_gate", hidden, size)
        self.project = ReplicatedLinear(context, f"{name}.per_layer_projection", size, hidden)
        self.norm = config.build_norm(context)
        self._act = activation(config.hidden_act)

    def forward(
        self, x: torch.Tensor, own: torch.Tensor, residual: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Shapes: x, residual [T, E], own [T, P] -> [T, E]"""
        projected = self.project(self._act(self.gate(x)) * own)
        added: torch.Tensor = self.norm(projected, residual=residual)
        return added
