"""Gated residual streams: the hidden state of a token is M streams, and a part of a layer reads a
mean of them, each number weighed by itself, and adds its output to each stream.

For a token's streams x_1 .. x_M of E numbers, one after the other, with n_i = norm(x_i):

    g_1 .. g_M = sigmoid(up silu(down [n_1 .. n_M] / M))     # E numbers each, by a few in between
    read = mean over i of g_i n_i
    w = 2 sigmoid(inject [n_1 .. n_M] / M)                   # M numbers
    x_i = x_i + w_i part(read)

Each stream has its own weights of the norm. Replicated on every rank.
Source: Qwen team, Qwen4-Exp, 2026, as transformers has it; Zhu et al., Hyper-Connections, 2024
(arXiv 2409.19606).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import nn

from dovetail.interfaces.model import BuildContext
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.linear import ReplicatedLinear
from dovetail.layers.repeated import of_tensors
from dovetail_plugins.layers.hyper_connection import added


@dataclass(frozen=True, slots=True, kw_only=True)
class GatedConfig:
    """M, the numbers between `down` and `up`, and the eps of norms."""

    count: int
    rank: int
    norm_eps: float


class StreamsNorm(nn.Module):
    """The norm of each stream, with a weight that is stored as its distance from one.
    Shapes: weight [M E]"""

    def __init__(self, context: BuildContext, count: int, *, eps: float) -> None:
        super().__init__()
        width = count * context.model.hidden_size
        empty = torch.empty(width, dtype=dtype_of(context.model.dtype), device=context.device)
        self.weight = nn.Parameter(empty, requires_grad=False)
        self._count, self._eps = count, eps

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x [T, M E] -> [T, M E]"""
        return of_tensors(self._normed, x)[0]

    def _normed(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        streams = x.float().unflatten(-1, (self._count, -1))
        normed = F.rms_norm(streams, streams.shape[-1:], None, self._eps).flatten(-2)
        return ((normed * (1 + self.weight.float())).to(x.dtype),)


class GatedRead(nn.Module):
    """What is read of the streams. `plain` is a context without quantized weights."""

    def __init__(self, plain: BuildContext, name: str, config: GatedConfig) -> None:
        super().__init__()
        self.config, width = config, config.count * plain.model.hidden_size
        self.hc_norm = StreamsNorm(plain, config.count, eps=config.norm_eps)
        self.input_mix_weight_down = ReplicatedLinear(
            plain, f"{name}.input_mix_weight_down", width, config.rank
        )
        self.input_mix_weight_up = ReplicatedLinear(
            plain, f"{name}.input_mix_weight_up", config.rank, width
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x [T, M E] -> [T, E]"""
        return self.read(self.hc_norm(x))

    def read(self, normed: torch.Tensor) -> torch.Tensor:
        """Return the mean of normed streams. Shapes: normed [T, M E] -> [T, E]"""
        (few,) = of_tensors(self._few, self.input_mix_weight_down(normed))
        return of_tensors(self._mean, self.input_mix_weight_up(few), normed)[0]

    def _few(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (F.silu(x / self.config.count),)

    def _mean(self, gates: torch.Tensor, normed: torch.Tensor) -> tuple[torch.Tensor]:
        weighed = gates.sigmoid() * normed
        return (weighed.unflatten(-1, (self.config.count, -1)).mean(dim=-2),)


class GatedConnection(GatedRead):
    """The connection of one part of a layer."""

    def __init__(self, plain: BuildContext, name: str, config: GatedConfig) -> None:
        super().__init__(plain, name, config)
        width = config.count * plain.model.hidden_size
        self.block_inject_weight = ReplicatedLinear(
            plain, f"{name}.block_inject_weight", width, config.count
        )

    def apart(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what the part reads, and how much of its output is added to each stream.
        Shapes: x [T, M E] -> [T, E], [T, M]"""
        normed = self.hc_norm(x)
        (written,) = of_tensors(self._written, self.block_inject_weight(normed))
        return self.read(normed), written

    def _written(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (2 * (x / self.config.count).sigmoid(),)

    def added(self, x: torch.Tensor, written: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        """Return the streams with the part's output added. Shapes: x [T, M E], written [T, M],
        output [T, E] -> [T, M E]"""
        return of_tensors(added, x, written, output)[0]
