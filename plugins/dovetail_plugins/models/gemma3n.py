"""Gemma 3n, text: several hidden states per token, one computed by each layer and the others
corrected (AltUp), low-rank residuals (LAuReL), gates that keep only the largest numbers, per-layer
inputs, and last layers that read the keys and values of earlier ones.

A token's A hidden states x_i pass through a layer as follows. A router computes rows C of [A, A]
and c of [A] from one state:

    p_i = x_i + sum_j C_ij x_j                  # predict all
    y   = layer(p_0)                            # compute one
    x_i = p_i + (1 + c_i) (y - p_0)             # correct all

Source: Gemma Team, Gemma 3n, 2025; Baykal et al., "Alternating updates for efficient transformers",
2023; Menghani et al., "LAuReL: learned augmented residual layer", 2024
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from statistics import NormalDist

import torch
from torch import nn

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext
from dovetail.interfaces.plugin import Info
from dovetail.layers.activation import activation
from dovetail.layers.attention.rotary import Rope
from dovetail.layers.decoder import DecoderConfig, DecoderLayer, GatedMLP
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.linear import MergedColumnParallelLinear, ReplicatedLinear, RowParallelLinear
from dovetail.layers.stages import made_if
from dovetail.parallel.collectives import all_reduce
from dovetail.parallel.groups import tensor_group
from dovetail_plugins.model_types.gemma3n import cache, layer_types
from dovetail_plugins.models._layer_inputs import LayerInput
from dovetail_plugins.models._shared_kv import (
    Heads,
    SharingAttention,
    SharingForCausalLM,
    SharingLayer,
    SharingModel,
    sharing_config,
)

LEAST_SQUARE = 1e-5
"""Minimum mean square of a state when it is rescaled to another's magnitude."""


class Coefficients(nn.Module):
    """A small matrix that multiplies a few numbers of each token, sums in the same order in any
    batch. Shapes: weight [O, I]"""

    def __init__(self, context: BuildContext, in_size: int, out_size: int) -> None:
        super().__init__()
        dtype = dtype_of(context.model.dtype)
        empty = torch.empty(out_size, in_size, dtype=dtype, device=context.device)
        self.weight = nn.Parameter(empty, requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x [T, I] -> [T, O]"""
        return (x.unsqueeze(1) * self.weight).sum(dim=-1)


class AltUp(nn.Module):
    """Predicts and corrects the hidden states of a token around a layer that computes one."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig) -> None:
        super().__init__()
        model, settings = context.model, context.model.hf_config
        self.count = int(settings["altup_num_inputs"])
        self.active = int(settings["altup_active_idx"])
        self._scales = bool(settings["altup_correct_scale"])
        self._factor = 1.0 / model.hidden_size
        empty = torch.empty(model.hidden_size, dtype=dtype_of(model.dtype), device=context.device)
        self.correct_output_scale = nn.Parameter(empty, requires_grad=False)
        self.correction_coefs = Coefficients(context, self.count, self.count)
        self.prediction_coefs = Coefficients(context, self.count, self.count**2)
        router = f"{name}.modality_router"
        self.modality_router = ReplicatedLinear(context, router, model.hidden_size, self.count)
        self.router_norm = config.build_norm(context)

    def _routed(self, x: torch.Tensor) -> torch.Tensor:
        """Return numbers in -1 .. 1 of a state. Shapes: x [T, E] -> [T, A]"""
        scores = self.modality_router(self.router_norm(x) * self._factor)
        return torch.tanh(scores.float()).to(x.dtype)

    def predict(self, x: torch.Tensor) -> torch.Tensor:
        """Return the predicted states. Shapes: x [A, T, E] -> [A, T, E]"""
        coefs = self.prediction_coefs(self._routed(x[self.active]))
        of_each = coefs.unflatten(-1, (self.count, self.count)).permute(1, 2, 0).unsqueeze(-1)
        return x + (of_each * x).sum(dim=1)

    def correct(self, predicted: torch.Tensor, computed: torch.Tensor) -> torch.Tensor:
        """Return the states when one is known. Shapes: predicted [A, T, E], computed [T, E] ->
        [A, T, E]"""
        coefs = self.correction_coefs(self._routed(computed)) + 1.0
        news = computed - predicted[self.active]
        return predicted + news * coefs.transpose(0, 1).unsqueeze(-1)

    def scaled(self, x: torch.Tensor) -> torch.Tensor:
        """Return the active state as the layer's own input is made of it. Shapes: [T, E] ->
        [T, E]"""
        return x * self.correct_output_scale if self._scales else x


class Laurel(nn.Module):
    """x + norm(right(left(x))), of low rank."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig) -> None:
        super().__init__()
        size, rank = context.model.hidden_size, int(context.model.hf_config["laurel_rank"])
        self.linear_left = ReplicatedLinear(context, f"{name}.linear_left", size, rank)
        self.linear_right = ReplicatedLinear(context, f"{name}.linear_right", rank, size)
        self.post_laurel_norm = config.build_norm(context)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x [T, E] -> [T, E]"""
        added = self.linear_right(self.linear_left(x))
        out: torch.Tensor = self.post_laurel_norm(added, residual=x)
        return out


class SparseMLP(nn.Module):
    """A gated MLP that computes with the largest numbers of the gate: about the share `sparsity` of
    them, if they are spread normally, becomes 0 before the activation."""

    def __init__(
        self, context: BuildContext, name: str, *, inner: int, act: str, sparsity: float
    ) -> None:
        super().__init__()
        size = context.model.hidden_size
        parts = {"gate": inner, "up": inner}
        self.gate_up_proj = MergedColumnParallelLinear(context, f"{name}.gate_up_proj", size, parts)
        self.down_proj = RowParallelLinear(context, f"{name}.down_proj", inner, size)
        self._act, self._inner = activation(act), inner
        self._deviations = NormalDist().inv_cdf(sparsity)
        self._group = tensor_group(context.rank)

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E]"""
        gate, up = self.gate_up_proj(x).chunk(2, dim=-1)
        mean = self._mean(gate)
        deviation = self._mean((gate - mean).square()).sqrt()
        active = torch.relu(gate - (mean + deviation * self._deviations))
        return self.down_proj(self._act(active) * up, residual)

    def _mean(self, x: torch.Tensor) -> torch.Tensor:
        """Return the mean over the numbers of all ranks. Shapes: [T, F of this rank] -> [T, 1]"""
        return all_reduce(x.sum(dim=-1, keepdim=True), self._group) / self._inner


class Gemma3nLayer(SharingLayer):
    """One layer: attention and MLP of one state, the others corrected."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        super().__init__(context, name, config, layer)
        self.altup = AltUp(context, f"{name}.altup", config)
        self.laurel = Laurel(context, f"{name}.laurel", config)
        self.layer_input = LayerInput(context, name, config)

    def build_attention(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return attention over the keys and values of this layer or of an earlier one."""
        model = context.model
        heads = Heads(
            num_kv_heads=model.num_kv_heads,
            head_size=model.head_size,
            source=cache(model.hf_config).sources[layer],
        )
        return SharingAttention(context, name, config, layer, heads)

    def build_mlp(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's MLP, sparse in the layers that config.json says."""
        inner, sparsity = _inner_size(context.model, layer), _sparsity(context.model, layer)
        if not sparsity:
            return GatedMLP(context, name, inner=inner, act=config.hidden_act)
        return SparseMLP(context, name, inner=inner, act=config.hidden_act, sparsity=sparsity)

    def forward(
        self, x: torch.Tensor, ropes: Mapping[str, Rope], own: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Shapes: x [A, T, E], own [T, P] -> [A, T, E]"""
        predicted = self.altup.predict(x)
        active = predicted[self.altup.active]
        normed = self.input_layernorm(active)
        attended = self.self_attn(normed, ropes.get(self.rope))
        attended = self.post_attention_layernorm(attended, residual=active)
        both = (attended + self.laurel(normed)) * 2**-0.5
        fed = self.mlp(self.pre_feedforward_layernorm(both))
        computed = self.post_feedforward_layernorm(fed, residual=both)
        corrected = self.altup.correct(predicted, computed)
        scaled = self.altup.scaled(corrected[self.altup.active])
        assert own is not None, "every layer has an input"
        corrected[1:] += self.layer_input(scaled, own)
        return corrected


class Gemma3nModel(SharingModel):
    """The decoder with A states per token, made from its embedding and merged after the layers."""

    def __init__(
        self,
        context: BuildContext,
        name: str,
        config: DecoderConfig,
        layer_class: type[DecoderLayer] = Gemma3nLayer,
    ) -> None:
        settings, size = context.model.hf_config, context.model.hidden_size
        super().__init__(context, name, config, layer_class, cache(settings).sources)
        self._count, self._size = int(settings["altup_num_inputs"]), size
        self.stage.width = self._count * size
        first, last = self.stage.is_first, self.stage.is_last
        self.altup_projections = self._matrices(context, f"{name}.altup_projections", first)
        behind = f"{name}.altup_unembed_projections"
        self.altup_unembed_projections = self._matrices(context, behind, last)

    def _matrices(self, context: BuildContext, name: str, is_here: bool) -> nn.ModuleList:
        """Return a matrix [E, E] for each state but one."""

        def make(number: int) -> ReplicatedLinear:
            return ReplicatedLinear(context, f"{name}.{number}", self._size, self._size)

        return nn.ModuleList(made_if(is_here, partial(make, i)) for i in range(self._count - 1))

    def spread_out(self, embedded: torch.Tensor) -> torch.Tensor:
        """Return the states of the tokens. Shapes: [T, E] -> [A, T, E]"""
        others = [_sized(make(embedded), embedded) for make in self.altup_projections]
        return torch.stack([embedded, *others])

    def handed_on(self, x: torch.Tensor) -> torch.Tensor:
        """Return the states side by side. Shapes: [A, T, E] -> [T, A * E]"""
        return x.transpose(0, 1).flatten(1)

    def taken_up(self, received: torch.Tensor) -> torch.Tensor:
        """Return the states apart. Shapes: [T, A * E] -> [A, T, E]"""
        return received.unflatten(1, (self._count, self._size)).transpose(0, 1).contiguous()

    def joined(self, x: torch.Tensor) -> torch.Tensor:
        """Return the mean of the states. Shapes: x [A, T, E] -> [T, E]"""
        first, *others = x.unbind()
        projected = [
            _sized(make(other), first)
            for make, other in zip(self.altup_unembed_projections, others, strict=True)
        ]
        return torch.stack([first, *projected]).mean(dim=0)


class Gemma3nForCausalLM(SharingForCausalLM):
    """Gemma 3n's text model with a head. Of checkpoints that see and hear the text part is run."""

    info = Info(summary="Gemma 3n, text only", source="https://ai.google.dev/gemma/docs/gemma-3n")
    model_class = Gemma3nModel
    layer_class = Gemma3nLayer
    senses = ("vision_tower.", "audio_tower.", "embed_vision.", "embed_audio.")

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return Gemma 3n's config: norms store plain weights, queries are not scaled."""
        return sharing_config(model, layer_types(model.hf_config))


def _sized(x: torch.Tensor, like: torch.Tensor) -> torch.Tensor:
    """Return x brought to the size of another, token by token. Shapes: x, like [T, E] -> [T, E]"""
    wanted = like.square().mean(dim=-1, keepdim=True).sqrt()
    own = x.square().mean(dim=-1, keepdim=True).clamp(min=LEAST_SQUARE).sqrt()
    return x * wanted / own


def _inner_size(model: ModelSpec, layer: int) -> int:
    """Return the inner size of a layer's MLP, which config.json may say for each."""
    sizes = model.hf_config["intermediate_size"]
    return int(sizes[layer] if isinstance(sizes, list) else sizes)


def _sparsity(model: ModelSpec, layer: int) -> float:
    """Return the share of a layer's gates that are zeroed, 0 for none: by default 0.95 in the first
    ten of more layers."""
    shares = model.hf_config.get("activation_sparsity_pattern")
    if shares is None:
        return 0.95 if model.num_layers > 10 and layer < 10 else 0.0
    return float(shares[layer] if isinstance(shares, list) else shares)
