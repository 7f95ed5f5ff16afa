"""The layers of drafters without attention: Medusa's heads and IBM's recurrent network."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import nn

from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.embedding import VocabParallelEmbedding
from dovetail.layers.linear import ReplicatedLinear
from dovetail.layers.logits import LogitsHead

EPS = 1e-6


class MedusaBlocks(nn.Module):
    """Residual blocks: x + silu(W x + b), one after the other."""

    def __init__(self, context: BuildContext, name: str, count: int) -> None:
        super().__init__()
        size = context.model.hidden_size
        has_bias = bool(context.model.hf_config.get("medusa_fc_bias", True))
        self.layers = nn.ModuleList(
            ReplicatedLinear(context, f"{name}.layers.{i}", size, size, bias=has_bias)
            for i in range(count)
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x [S, E] -> [S, E]"""
        for layer in self.layers:
            x = x + F.silu(layer(x))
        return x


class MedusaModule(nn.Module):
    """A few blocks and a vocabulary's matrix for each place of a draft."""

    def __init__(self, context: BuildContext, num_heads: int, num_blocks: int) -> None:
        super().__init__()
        model = context.model
        self.blocks = nn.ModuleList(
            MedusaBlocks(context, f"blocks.{i}", num_blocks) for i in range(num_heads)
        )
        self.lm_heads = nn.ModuleList(
            LogitsHead(context, f"lm_heads.{i}", model.vocab_size, model.hidden_size)
            for i in range(num_heads)
        )

    def weight_map(self) -> WeightMap:
        """Return the unchanged names."""
        return WeightMap()

    def forward(self, states: torch.Tensor, depth: int) -> torch.Tensor:
        """Return the logits of head `depth`. Shapes: states [S, E] -> [S, V]"""
        found: torch.Tensor = self.lm_heads[depth](self.blocks[depth](states))
        return found


class ScaledNorm(nn.Module):
    """x / rms(x) * w + b; without `has_weights` there is no w or b."""

    def __init__(self, context: BuildContext, size: int, *, has_weights: bool = True) -> None:
        super().__init__()
        dtype = dtype_of(context.model.dtype)
        parameters = [torch.empty(size, dtype=dtype, device=context.device) for _ in range(2)]
        self.weight = nn.Parameter(parameters[0], requires_grad=False) if has_weights else None
        self.bias = nn.Parameter(parameters[1], requires_grad=False) if has_weights else None

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x [T, I] -> [T, I]"""
        scaled = x * torch.rsqrt(x.pow(2).mean(-1, keepdim=True) + EPS)
        if self.weight is None or self.bias is None:
            return scaled
        return scaled * self.weight + self.bias


class MlpModule(nn.Module):
    """For place d: state = gelu(ln(proj state + c emb(token))), logits = head state.

    The weights of state and token vector are such that the state keeps its size. With `tie_weights`
    all places share what fits: everything except the first `proj`, which reads hidden states.
    """

    def __init__(self, context: BuildContext) -> None:
        super().__init__()
        model, config = context.model, context.model.hf_config
        self.num_places = int(config["n_predict"])
        self._is_tied = bool(config.get("tie_weights", False))
        inner = int(config.get("inner_dim") or 0) or model.hidden_size
        sizes = [model.hidden_size] + [inner] * (self.num_of("proj") - 1)
        self.emb = nn.ModuleList(
            VocabParallelEmbedding(context, model.vocab_size, inner)
            for _ in range(self.num_of("emb"))
        )
        self.proj = nn.ModuleList(
            ReplicatedLinear(context, f"proj.{i}", size, inner) for i, size in enumerate(sizes)
        )
        self.head = nn.ModuleList(
            LogitsHead(context, f"head.{i}", model.vocab_size, inner)
            for i in range(self.num_of("head"))
        )
        self.ln = nn.ModuleList(ScaledNorm(context, inner) for _ in range(self.num_of("ln")))
        scales = bool(config.get("scale_input", False))
        self.ln0 = ScaledNorm(context, model.hidden_size, has_weights=False) if scales else None
        state_weight = 0.5 ** (0.5 / self.num_places)
        self._state_weight = state_weight
        self._token_weight = math.sqrt((1 - state_weight**2) * (inner / 2))

    def num_of(self, part: str) -> int:
        """Return how many layers of a name there are."""
        if not self._is_tied:
            return self.num_places
        return min(2, self.num_places) if part == "proj" else 1

    def weight_map(self) -> WeightMap:
        """Return the names without the prefix "speculator."."""
        return WeightMap(prefixes=(("speculator.", ""),))

    def forward(self, token_ids: torch.Tensor, states: torch.Tensor, depth: int) -> torch.Tensor:
        """Shapes: token_ids [T], states [T, E or inner] -> [T, inner]"""
        if depth == 0 and self.ln0 is not None:
            states = self.ln0(states) / math.sqrt(2)
        state = self._at(self.proj, depth)(states) * self._state_weight
        state = state + self._at(self.emb, depth)(token_ids) * self._token_weight
        found: torch.Tensor = F.gelu(self._at(self.ln, depth)(state))
        return found

    def logits(self, states: torch.Tensor, depth: int) -> torch.Tensor:
        """Return logits. Shapes: [S, inner] -> [S, V]"""
        found: torch.Tensor = self._at(self.head, depth)(states)
        return found

    def _at(self, layers: nn.ModuleList, depth: int) -> nn.Module:
        return layers[min(depth, len(layers) - 1)]
