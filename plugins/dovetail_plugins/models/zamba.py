"""Zamba: Zamba 2's layers with Mamba's first mixers, head by head, and one block without adapters
that all calls share, whose attention is not rotated.

A mixer computes, of the T tokens of a step (H heads of D numbers, S numbers of state a channel, K
rank of the time step):

    x, z = in_proj(h)                                    # [T, H D] each, in turns by channel
    x = act(conv1d(x))
    dt, b, c = x_proj(x)                                 # [T, H, K], [T, H, S], [T, H, S], by head
    y = scan(x, dt_proj(dt), b, c) * silu(z)             # a scan for each head
    h = out_proj(y)

Source: Glorioso et al., Zamba: A Compact 7B SSM Hybrid Model, 2024 (arXiv 2405.16712).
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial

import torch
from torch import nn

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import FUSED, DecoderConfig, GatedMLP, usual_config
from dovetail.layers.linear import Linear, RowParallelLinear, even_part
from dovetail.layers.repeated import of_tensors
from dovetail.layers.state import CONV, Part, State
from dovetail.parallel.groups import tensor_group
from dovetail_kernels import selective_scan
from dovetail_kernels.head_products.matrices import HeadMatrices
from dovetail_kernels.op import Arguments
from dovetail_kernels.selective_scan.native import SelectiveScan
from dovetail_plugins.layers.mixers.recurrent import DividedVectors, OverRows, ShortConv
from dovetail_plugins.model_types.zamba import layer_types, mixer_sizes
from dovetail_plugins.models.zamba2 import (
    LayersByCall,
    SharedBlock,
    Zamba2ForCausalLM,
    Zamba2Layer,
    side_by_side,
)

XZ = "xz"
"""The joint of inputs and gates: one of each in turns."""


class HeadMixer(DividedVectors):
    """The mixer of one layer. Its heads are divided over ranks, their states with them."""

    def __init__(self, context: BuildContext, name: str) -> None:
        super().__init__()
        settings, hidden = context.model.hf_config, context.model.hidden_size
        sizes, count = mixer_sizes(settings), int(settings["n_mamba_heads"])
        group, self.sizes = tensor_group(context.rank), sizes
        heads, self.size = even_part("", count, group, f"{name} heads"), sizes.inner // count
        self.heads = heads.local
        channels = tuple(even_part(part, sizes.inner, group, name) for part in XZ)
        self.in_proj = Linear(
            context,
            f"{name}.in_proj",
            hidden,
            channels,
            bias=sizes.has_bias,
            joints={XZ: dict.fromkeys(XZ, 1)},
        )
        channel = even_part("", sizes.inner, group, name)
        act = settings["hidden_mamba_act"]
        self.conv1d = ShortConv(context, (channel,), sizes.conv, bias=sizes.has_conv_bias, act=act)
        width = sizes.time_rank + 2 * sizes.state
        self.add_vector(context, "x_proj_weight", (heads,), behind=(width, self.size))
        self.add_vector(context, "dt_proj_weight", (heads,), behind=(self.size, sizes.time_rank))
        for leaf, behind in (("dt_proj_bias", ()), ("A_log", (sizes.state,)), ("D", ())):
            own = (self.size, *behind)
            self.add_vector(context, leaf, (heads,), behind=own, dtype=torch.float32)
        self.out_proj = RowParallelLinear(
            context, f"{name}.out_proj", sizes.inner, hidden, bias=sizes.has_bias
        )
        shape = (self.size, sizes.state)
        scans = (Part(name=f"scan{head}", shape=shape) for head in range(self.heads))
        self.state = State(name, (self.conv1d.state_part(CONV), *scans))
        self._scans = [
            OverRows(selective_scan.OP, context, SelectiveScan, partial(self._bound, head))
            for head in range(self.heads)
        ]

    def finish(self) -> None:
        """Make the decay of the states of its logarithm, and the heads' matrices of theirs.
        Mutates: self"""
        decay = -torch.exp(self.get_parameter("A_log").data)
        self.register_buffer("decay", decay, persistent=False)
        self._inputs, self._steps = (self._matrices(f"{name}_proj_weight") for name in ("x", "dt"))
        for scan in self._scans:
            scan.finish()

    def _matrices(self, leaf: str) -> HeadMatrices:
        """Return a parameter as matrices of the heads, in place of itself. Mutates: self"""
        weight = self.get_parameter(leaf).data
        self.register_parameter(leaf, None)
        matrices = HeadMatrices(weight.transpose(1, 2), dtype=weight.dtype)
        self.register_buffer(f"{leaf}s", matrices.tensor, persistent=False)
        return matrices

    def _bound(self, head: int) -> Arguments:
        """Return the arguments of a head's scan that are this layer's."""
        d, bias = (self.get_parameter(leaf).data[head] for leaf in ("D", "dt_proj_bias"))
        return {"a": self.get_buffer("decay")[head], "d": d, "dt_bias": bias}

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E]"""
        x, z = self.in_proj(x).chunk(2, dim=-1)
        parts, rows = self.state.step()
        x = self.conv1d(x, parts[CONV], rows)
        steps = self._steps(self._inputs(x.unflatten(-1, (self.heads, self.size))))
        widths = (self.size, self.sizes.state, self.sizes.state)
        outputs = []
        for head, scan in enumerate(self._scans):
            own = slice(head * self.size, (head + 1) * self.size)
            dt, b, c = steps[:, head].split(widths, dim=-1)
            state = parts[f"scan{head}"]
            outputs.append(scan(state, rows, x=x[:, own], dt=dt, b=b, c=c, z=z[:, own]))
        (y,) = of_tensors(side_by_side, *outputs)
        return self.out_proj(y, residual)


class CalledMLP(GatedMLP):
    """An MLP that is the same in every call."""

    def forward(self, x: torch.Tensor, call: int | torch.Tensor | None = None) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E]"""
        return super().forward(x)


class ZambaBlock(SharedBlock):
    """Attention and an MLP that several layers call."""

    def build_mlp(
        self, context: BuildContext, name: str, config: DecoderConfig, calls: LayersByCall
    ) -> nn.Module:
        """Return the block's MLP."""
        inner = int(context.model.hf_config["intermediate_size"])
        return CalledMLP(context, name, inner=inner, act=config.hidden_act)


class ZambaLayer(Zamba2Layer):
    """A mixer; in a layer that calls the block, it follows the block's output."""

    block_class = ZambaBlock
    block_name = "shared_transf"

    def build_mixer(self, context: BuildContext, name: str) -> nn.Module:
        """Return the layer's mixer."""
        return HeadMixer(context, name)


class ZambaForCausalLM(Zamba2ForCausalLM):
    """Zamba with its tied head."""

    info = Info(
        summary="Zamba: Mamba and a shared block", source="https://arxiv.org/abs/2405.16712"
    )
    layer_class = ZambaLayer

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the usual config."""
        return usual_config(model, layer_types=layer_types(model.hf_config))

    def weight_map(self) -> WeightMap:
        """Return the names: gate and up are stored apart, in_proj's rows in turns."""
        usual = super().weight_map()
        gates = {name: FUSED[name] for name in ("gate_proj", "up_proj")}
        return replace(usual, fused={**usual.fused, **gates, "in_proj": ("in_proj", XZ)})
