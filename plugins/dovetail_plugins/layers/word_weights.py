"""WordWeights: the masked language model's head, as SPLADE uses it.

Source: Formal et al., SPLADE v2, 2021, equation 1 (before the maximum, which a pooler takes).
"""

from __future__ import annotations

import torch
from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.model import BuildContext
from dovetail.layers.activation import activation
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.embedding import VocabParallelEmbedding
from dovetail.layers.linear import ReplicatedLinear
from dovetail.layers.logits import LogitsHead
from dovetail.layers.norm import LayerNorm


class WordWeights(nn.Module):
    """log(1 + relu(out(norm(act(dense(x)))))): a number for each word of the vocabulary. The
    matrix of `out` is the table of `words`; its bias is whole on every rank. Shapes: bias [V]"""

    def __init__(
        self, context: BuildContext, words: VocabParallelEmbedding, *, act: str, norm_eps: float
    ) -> None:
        """Create the layers. Raises: ConfigError for a matrix that is not the table's"""
        super().__init__()
        model = context.model
        if not model.hf_config.get("tie_word_embeddings", True):
            raise ConfigError(
                "weights of words by a matrix of their own are not supported.",
                where="config.json: tie_word_embeddings",
            )
        size = model.hidden_size
        self.dense = ReplicatedLinear(context, "head.dense", size, size, bias=True)
        self.act = activation(act)
        self.norm = LayerNorm(context, size, eps=norm_eps)
        self.out = LogitsHead(context, "head.out", model.vocab_size, size, tied=words)
        empty = torch.empty(model.vocab_size, dtype=dtype_of(model.dtype), device=context.device)
        self.bias = nn.Parameter(empty, requires_grad=False)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Shapes: states [S, E] -> [S, V]"""
        logits: torch.Tensor = self.out(self.norm(self.act(self.dense(states))))
        return torch.log1p(torch.relu(logits + self.bias))
