"""BGE-M3: XLM-RoBERTa and two matrices, for three kinds of vectors from one pass.

The vector of a prompt is its first token's state. Each further token has a vector for late
interaction, and each token of the text a weight.
Source: Chen et al., M3-Embedding, 2024, section 3.2. Format: the two files of BAAI/bge-m3.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.data.pooling_params import TOKEN_CLASSIFY, TOKEN_EMBED
from dovetail.interfaces.data.spec import MIXED
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.linear import ReplicatedLinear
from dovetail_plugins.load_formats._pt_file import read_tensors
from dovetail_plugins.models.roberta import RobertaModel

HEADS = {"colbert_linear": "head.vectors.", "sparse_linear": "head.weights."}
"""The file of a matrix, without .pt -> its name here."""


class MixedHead(nn.Module):
    """The matrix that makes vectors of tokens, and the one that makes their weights."""

    def __init__(self, context: BuildContext) -> None:
        super().__init__()
        size, settings = context.model.hidden_size, context.model.hf_config
        out = int(settings.get("colbert_dim") or size)
        self.vectors = ReplicatedLinear(context, "head.vectors", size, out, bias=True)
        self.weights = ReplicatedLinear(context, "head.weights", size, 1, bias=True)

    def forward(self, states: torch.Tensor) -> torch.Tensor:
        """Return the weights of tokens. Shapes: states [S, E] -> [S]"""
        return torch.relu(self.weights(states))[:, 0]


class BgeM3Model(RobertaModel):
    """XLM-RoBERTa for the vector of a prompt, vectors of its tokens, and their weights."""

    info = Info(summary="BGE-M3", source="https://arxiv.org/abs/2402.03216")

    def __init__(self, options: Any, context: BuildContext) -> None:
        super().__init__(options, context)
        self._folder, settings = Path(context.model.path), context.model.hf_config
        self._begin, self._end = settings.get("bos_token_id", 0), settings.get("eos_token_id", 2)

    def build_head(self, context: BuildContext) -> nn.Module:
        """Return the two matrices, or the head of another purpose."""
        if context.model.head != MIXED:
            return super().build_head(context)
        return MixedHead(context)

    def task_states(
        self, task: str, states: torch.Tensor, token_ids: Sequence[int]
    ) -> torch.Tensor:
        """Return the states of the tokens that a task reads: vectors without the first special
        token, weights without the first and the last. Shapes: states [n, E] -> [m, E or O]"""
        if not isinstance(self.head, MixedHead) or task not in (TOKEN_CLASSIFY, TOKEN_EMBED):
            return super().task_states(task, states, token_ids)
        first = int(token_ids[0] == self._begin)
        if task == TOKEN_EMBED:
            found: torch.Tensor = self.head.vectors(states[first:])
            return found
        end = len(states) - (token_ids[-1] == self._end)
        return states[first : max(first, end)]

    def weight_map(self) -> WeightMap:
        """Return XLM-RoBERTa's names, and those of the two matrices."""
        plain = super().weight_map()
        if not isinstance(self.head, MixedHead):
            return plain
        renames = ((f"{old}.", new) for old, new in HEADS.items())
        return replace(plain, prefixes=(*renames, *plain.prefixes), conversion=self._with_files)

    def _with_files(
        self, tensors: Iterable[tuple[str, torch.Tensor]]
    ) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield the tensors, then those of the matrices' files that are not among them. Raises:
        ConfigError for a missing or unreadable file"""
        missing = set(HEADS)
        for name, tensor in tensors:
            missing.discard(name.partition(".")[0])
            yield name, tensor
        for stem in sorted(missing):
            file = self._folder / f"{stem}.pt"
            if not file.is_file():
                raise ConfigError(
                    "BGE-M3 has this file beside its weights, and it is missing.",
                    where=str(file),
                    fix="download it, or serve the folder as XLMRobertaModel.",
                )
            for leaf, tensor in read_tensors(file, {"*": "cpu"}).items():
                yield f"{stem}.{leaf}", tensor
