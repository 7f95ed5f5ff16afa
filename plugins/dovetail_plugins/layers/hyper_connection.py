"""Hyper-connections: the hidden state of a token is M streams, and a part of a layer reads one sum
of them and adds its output to each.

For a token's streams x_1 .. x_M of E numbers, one after the other:

    a, b = fn(norm([x_1 .. x_M]))                        # M numbers each
    r_i = sigmoid(a_i s_1 + base_i) + eps                # read
    w_i = m sigmoid(b_i s_2 + base_(M + i)) + eps        # written
    x_i = x_i + w_i part(sum_i r_i x_i)

All of it is computed in float32. After the last layer, an r joins the streams, or their mean does.
A connection that mixes makes M x M numbers more, c:

    C = sinkhorn(softmax of rows (c s_3 + base) + eps)   # rows and columns add up to 1
    x_i = w_i part(..) + sum_j C_ji x_j                  # w without eps

Replicated on every rank. Sources: Zhu et al., Hyper-Connections, 2024, arXiv 2409.19606; that which
mixes: Xie et al., Manifold-Constrained Hyper-Connections, 2026; that which does not: Hunyuan 4,
2026, as transformers has it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from dovetail.interfaces.model import BuildContext
from dovetail.layers.linear import ReplicatedLinear
from dovetail.layers.norm import BareRMSNorm, RMSNorm
from dovetail.layers.repeated import of_tensors
from dovetail_plugins.layers.moe import in_float32

MIXED_MAGNITUDE = 2.0
"""The m of connections that mix: no config.json has it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StreamsConfig:
    """M, the factor m of what is written, and eps; `norm_eps` is that of the streams' norm.
    `rounds`: how often rows and columns are divided by their sums, 0 without a mixture."""

    count: int
    magnitude: float
    eps: float
    norm_eps: float
    rounds: int = 0

    @classmethod
    def of_mixing(cls, context: BuildContext) -> StreamsConfig:
        """Return the sizes of a model's connections that mix."""
        settings = context.model.hf_config
        return cls(
            count=int(settings["hc_mult"]),
            magnitude=MIXED_MAGNITUDE,
            eps=float(settings["hc_eps"]),
            norm_eps=float(settings["rms_norm_eps"]),
            rounds=int(settings["hc_sinkhorn_iters"]),
        )


class HyperMix(nn.Module):
    """The parameters that make `parts` times M numbers of a token, under `scales` factors. `plain`
    is a context without quantized weights, and `name` the module's name in the checkpoint."""

    def __init__(
        self, plain: BuildContext, name: str, config: StreamsConfig, *, parts: int, scales: int
    ) -> None:
        super().__init__()
        wide, width = in_float32(plain), config.count * plain.model.hidden_size
        self.config = config
        self.norm = BareRMSNorm(wide, width, eps=config.norm_eps)
        self.fn = ReplicatedLinear(wide, f"{name}.fn", width, parts * config.count)
        self.base = self._empty(plain, parts * config.count)
        self.scale = self._empty(plain, scales)

    def _empty(self, context: BuildContext, size: int) -> nn.Parameter:
        empty = torch.empty(size, dtype=torch.float32, device=context.device)
        return nn.Parameter(empty, requires_grad=False)

    def mixes(self, x: torch.Tensor) -> torch.Tensor:
        """Return a token's numbers. Shapes: x [T, M E] -> [T, parts M] float32"""
        return self.fn(self.norm(x.float()))

    def gate(self, mixes: torch.Tensor, part: int) -> torch.Tensor:
        """Return sigmoids of one part. Shapes: mixes [T, parts M] -> [T, M]"""
        own = slice(part * self.config.count, (part + 1) * self.config.count)
        return torch.sigmoid(mixes[:, own] * self.scale[part] + self.base[own])

    def collapsed(self, mixes: torch.Tensor, x: torch.Tensor) -> torch.Tensor:
        """Return the sum of the streams that is read. Shapes: x [T, M E] -> [T, E]"""
        read = self.gate(mixes, 0) + self.config.eps
        streams = x.unflatten(-1, (self.config.count, -1))
        return (read.unsqueeze(-1) * streams).sum(dim=1).to(x.dtype)


class HyperConnection(HyperMix):
    """The connection of one part of a layer."""

    def __init__(self, plain: BuildContext, name: str, config: StreamsConfig) -> None:
        super().__init__(plain, name, config, parts=2, scales=2)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return what the part reads, and how much of its output is added to each stream.
        Shapes: x [T, M E] -> [T, E], [T, M] float32"""
        read, written = of_tensors(self._apart, self.mixes(x), x)
        return read, written

    def _apart(self, mixes: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        written = self.config.magnitude * self.gate(mixes, 1) + self.config.eps
        return self.collapsed(mixes, x), written

    def added(self, x: torch.Tensor, written: torch.Tensor, output: torch.Tensor) -> torch.Tensor:
        """Return the streams with the part's output added. Shapes: x [T, M E], written [T, M],
        output [T, E] -> [T, M E]"""
        return of_tensors(added, x, written, output)[0]


class MixingConnection(HyperMix):
    """The same with a matrix that mixes the streams."""

    def __init__(self, plain: BuildContext, name: str, config: StreamsConfig) -> None:
        super().__init__(plain, name, config, parts=2 + config.count, scales=3)

    def forward(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
        """Return what the part reads, how much of its output is added to each stream, and C.
        Shapes: x [T, M E] -> [T, E], [T, M] and [T, M, M] float32"""
        read, written, mixture = of_tensors(self._apart, self.mixes(x), x)
        return read, written, mixture

    def _apart(self, mixes: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor, ...]:
        count, eps = self.config.count, self.config.eps
        own = slice(2 * count, None)
        found = mixes[:, own] * self.scale[2] + self.base[own]
        mixture = found.unflatten(-1, (count, count)).softmax(dim=-1) + eps
        for number in range(2 * self.config.rounds - 1):  # columns first, and last
            axis = -1 if number % 2 else -2
            mixture = mixture / (mixture.sum(dim=axis, keepdim=True) + eps)
        return self.collapsed(mixes, x), self.config.magnitude * self.gate(mixes, 1), mixture

    def added(
        self, x: torch.Tensor, written: torch.Tensor, mixture: torch.Tensor, output: torch.Tensor
    ) -> torch.Tensor:
        """Return the mixed streams with the part's output added. Shapes: x [T, M E], written
        [T, M], mixture [T, M, M], output [T, E] -> [T, M E]"""
        return of_tensors(_mixed, x, written, mixture, output)[0]


class MeanNorm(RMSNorm):
    """The norm of the mean of `count` streams, after the last layer."""

    def __init__(self, context: BuildContext, config: StreamsConfig) -> None:
        super().__init__(context, context.model.hidden_size, eps=config.norm_eps)
        self._count = config.count

    def forward(self, x: torch.Tensor, **others: torch.Tensor | None) -> torch.Tensor:
        """Shapes: x [T, M E] -> [T, E]"""
        (mean,) = of_tensors(self._mean, x)
        return super().forward(mean, **others)

    def _mean(self, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (x.unflatten(-1, (self._count, -1)).mean(dim=1),)


class JoinedNorm(RMSNorm):
    """Joins the streams after the last layer, and norms their sum."""

    def __init__(self, plain: BuildContext, name: str, config: StreamsConfig) -> None:
        super().__init__(plain, plain.model.hidden_size, eps=config.norm_eps)
        self.head = HyperMix(plain, name, config, parts=1, scales=1)

    def forward(self, x: torch.Tensor, **others: torch.Tensor | None) -> torch.Tensor:
        """Shapes: x [T, M E] -> [T, E]"""
        (joined,) = of_tensors(self._joined, self.head.mixes(x), x)
        return super().forward(joined, **others)

    def _joined(self, mixes: torch.Tensor, x: torch.Tensor) -> tuple[torch.Tensor]:
        return (self.head.collapsed(mixes, x),)


def spread(count: int, x: torch.Tensor) -> torch.Tensor:
    """Return `count` streams, each the first layer's input. Shapes: x [T, E] -> [T, M E]"""
    return of_tensors(lambda given: (given.repeat(1, count),), x)[0]


def _mixed(
    x: torch.Tensor, written: torch.Tensor, mixture: torch.Tensor, output: torch.Tensor
) -> tuple[torch.Tensor]:
    count = written.shape[-1]
    streams = x.unflatten(-1, (count, -1)).float()
    mixed = torch.bmm(mixture.transpose(1, 2), streams)  # of each token alone
    news = written.unsqueeze(-1) * output.float().unsqueeze(1)
    return ((news + mixed).flatten(1).to(x.dtype),)


def added(x: torch.Tensor, written: torch.Tensor, output: torch.Tensor) -> tuple[torch.Tensor]:
    """Return the streams with a part's output added, as much as is written to each.
    Shapes: x [T, M E], written [T, M], output [T, E] -> [T, M E]"""
    news = written.unsqueeze(-1) * output.float().unsqueeze(1)
    return ((x.float() + news.flatten(1)).to(x.dtype),)
