"""BERT: learned positions and types, norms behind sums, classes read from the first token.

Source: Devlin et al. 2018.
"""

from __future__ import annotations

import torch
from torch import nn

from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.class_head import class_linear
from dovetail.layers.encoder import EncoderModel
from dovetail.layers.linear import ReplicatedLinear

RENAMES = (
    ("embeddings.word_embeddings.", "embeddings.words."),
    ("embeddings.position_embeddings.", "embeddings.positions."),
    ("embeddings.token_type_embeddings.", "embeddings.types."),
    ("embeddings.LayerNorm.", "embeddings.norm."),
    ("encoder.layer.", "layers."),
    (".attention.self.", ".attention."),
    (".attention.output.dense.", ".attention.o_proj."),
    (".attention.output.LayerNorm.", ".attention_norm."),
    (".intermediate.dense.", ".up_proj."),
    (".output.dense.", ".down_proj."),
    (".output.LayerNorm.", ".output_norm."),
    ("_norm.gamma", "_norm.weight"),
    ("_norm.beta", "_norm.bias"),
    ("s.norm.gamma", "s.norm.weight"),
    ("s.norm.beta", "s.norm.bias"),
)
"""Names of checkpoints -> names of `layers.encoder`, the very old ones of norms too."""
FUSED = {"query": ("qkv_proj", "q"), "key": ("qkv_proj", "k"), "value": ("qkv_proj", "v")}


class BertClasses(nn.Module):
    """tanh(dense(x)), then one matrix: the classes of a prompt."""

    def __init__(self, context: BuildContext) -> None:
        super().__init__()
        size = context.model.hidden_size
        self.dense = ReplicatedLinear(context, "head.dense", size, size, bias=True)
        self.out = class_linear(context, "head.out")

    def forward(self, pooled: torch.Tensor) -> torch.Tensor:
        """Shapes: pooled [S, E] -> [S, C]"""
        return self.out(torch.tanh(self.dense(pooled)))


class BertModel(EncoderModel):
    """BERT, for vectors of prompts, their classes, or classes of their tokens."""

    info = Info(summary="BERT", source="https://arxiv.org/abs/1810.04805")

    def build_head(self, context: BuildContext) -> nn.Module:
        """Return what makes classes: of a prompt through the pooler's matrix, of tokens without."""
        is_of_prompt = context.model.head == "classes"
        return BertClasses(context) if is_of_prompt else super().build_head(context)

    def weight_map(self) -> WeightMap:
        """Return the names; checkpoints of whole models begin with "bert."."""
        to_head: tuple[tuple[str, str], ...] = (("classifier.", "head."),)
        unused = ["cls.", "embeddings.position_ids"]
        if isinstance(self.head, BertClasses):
            to_head = (("pooler.dense.", "head.dense."), ("classifier.", "head.out."))
        else:
            unused.append("pooler.")
        if self.head is None:
            unused.append("classifier.")
        return WeightMap(
            prefixes=(("bert.", ""),),
            renames=(*RENAMES, *to_head),
            fused=FUSED,
            ignored=tuple(unused),
        )
