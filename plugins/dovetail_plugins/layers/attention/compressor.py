"""Compressors: the entries that compressed attention makes of every few tokens, and their caches.

With x a token's input, for the m tokens s of a window (a softmax over tokens, for each channel):

    c_s = kv_proj x_s,  z_s = gates x_s + position_bias_s
    entry = norm(sum over s of softmax_s(z) c_s), its last numbers turned by the first token's place

Compressors whose windows overlap have twice the numbers: the entry covers the first halves of the
window before, and the second halves of its own. c and z of the last tokens are cached like keys in
a sliding window, so a window may begin in one step and end in another.
Source: DeepSeek-AI, DeepSeek-V4, 2026, section 2.3, as transformers has it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.data.step import EntryLayer, EntryPart
from dovetail.interfaces.model import BuildContext
from dovetail.layers.attention.rotary import Rope, apply_rotary
from dovetail.layers.kept import CachingLayer
from dovetail.layers.linear import ReplicatedLinear
from dovetail.layers.norm import RMSNorm


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressorConfig:
    """The sizes of a compressor: numbers of an entry, how many of them are turned, and tokens of a
    window."""

    size: int
    turned: int
    tokens: int
    overlaps: bool
    norm_eps: float

    @property
    def width(self) -> int:
        """Return the numbers of a token's c, and of its z."""
        return (1 + self.overlaps) * self.size

    @property
    def span(self) -> int:
        """Return how many tokens an entry covers."""
        return (1 + self.overlaps) * self.tokens


class Compressor(nn.Module):
    """The parameters of one compressor, alike on every rank. `plain` is a context without quantized
    weights."""

    def __init__(self, plain: BuildContext, name: str, config: CompressorConfig) -> None:
        super().__init__()
        self.config = config
        hidden, width = plain.model.hidden_size, config.width
        self.kv_proj = ReplicatedLinear(plain, f"{name}.kv_proj", hidden, width)
        self.gates = ReplicatedLinear(plain, f"{name}.gate_proj", hidden, width)
        empty = torch.empty(config.tokens, width, dtype=torch.float32, device=plain.device)
        self.position_bias = nn.Parameter(empty, requires_grad=False)
        self.kv_norm = RMSNorm(plain, config.size, eps=config.norm_eps)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Return what is cached of each token: c, and z without its bias. Shapes: x [T, E] ->
        [T, 2 width]"""
        return torch.cat([self.kv_proj(x), self.gates(x)], dim=-1)

    def entries(self, states: torch.Tensor, starts: torch.Tensor, rope: Rope) -> torch.Tensor:
        """Return the entries of windows that begin at the positions `starts`. Of a row's first
        window, what is before it does not count; `rope` has the table.

        Shapes: states [E, span, 2 width], starts [E] -> [E, size]
        """
        size, tokens = self.config.size, self.config.tokens
        values, gates = states.chunk(2, dim=-1)
        bias: torch.Tensor = self.position_bias
        if self.config.overlaps:
            values, gates = (
                torch.cat([x[:, :tokens, :size], x[:, tokens:, size:]], dim=1)
                for x in (values, gates)
            )
            bias = torch.cat([bias[:, :size], bias[:, size:]])
        gates = gates.float() + bias
        if self.config.overlaps:
            is_first = (starts == 0).view(-1, 1, 1)
            gates[:, :tokens] = gates[:, :tokens].masked_fill(is_first, -torch.inf)
            values = torch.cat([values[:, :tokens].masked_fill(is_first, 0), values[:, tokens:]], 1)
        shares = gates.softmax(dim=1).to(values.dtype)
        entries = self.kv_norm((shares * values).sum(dim=1))
        return turned_last(entries, Rope(starts, rope.cos, rope.sin), size, self.config.turned)


def turned_last(x: torch.Tensor, rope: Rope, size: int, turned: int) -> torch.Tensor:
    """Return heads whose last numbers are turned, by neighbours. Shapes: x [T, H size], rope of T
    positions -> [T, H size]"""
    rest, last = x.unflatten(-1, (-1, size)).tensor_split((size - turned,), dim=-1)
    new = apply_rotary(last.flatten(-2), rope, turned, is_interleaved=True).view_as(last)
    return torch.cat([rest, new], dim=-1).flatten(-2)


class Entries(CachingLayer):
    """The cache of all compressors' entries on this rank. `parts` are theirs."""

    def __init__(self, name: str, parts: tuple[EntryPart, ...]) -> None:
        super().__init__(name)
        self.parts = parts

    def kept(self, run: RunSpec) -> EntryLayer | None:
        """Return the cached entries, None without compressors."""
        if not self.parts:
            return None
        return EntryLayer(name=self.name, parts=self.parts, dtype=run.kv_dtype)
