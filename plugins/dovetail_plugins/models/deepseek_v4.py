"""DeepSeek V4: attention to the last tokens and to entries that each cover several earlier ones,
streams of hidden states, and experts whose gates are clamped.

The first layers' experts are picked by a table of token ids, the router only weighs them.
Source: DeepSeek-AI, DeepSeek-V4, 2026, as transformers has it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, ClassVar

import torch
from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.attention import IndexSpec
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.attention.rotary import Rope, Rotary, rope_settings, unscaled
from dovetail.layers.decoder import (
    DecoderConfig,
    DecoderForCausalLM,
    DecoderLayer,
    DecoderModel,
    usual_config,
)
from dovetail.layers.linear.placement import Part
from dovetail.layers.repeated import of_tensors
from dovetail.parallel.collectives import all_reduce
from dovetail_plugins.layers.attention.compressed import CompressedAttention, CompressedConfig
from dovetail_plugins.layers.attention.compressor import CompressorConfig, Entries
from dovetail_plugins.layers.hyper_connection import (
    JoinedNorm,
    MixingConnection,
    StreamsConfig,
    spread,
)
from dovetail_plugins.layers.mixers.recurrent import DividedVectors
from dovetail_plugins.layers.routing import RoutingRule, weigh
from dovetail_plugins.model_types.deepseek_v4 import (
    SLIDING,
    SPARSE,
    cached_tokens,
    is_hashed,
    layer_types,
    rates,
    turned_size,
)
from dovetail_plugins.models._moe import CORRECTION_BIAS, clamped
from dovetail_plugins.models.deepseek import DeepseekMoE, unquantized

COMPRESSED = "compressed"
"""The name of the rotation of layers with entries."""
PREFIXES = (
    ("embed.", "model.embed_tokens."),
    ("head.", "lm_head."),
    ("hc_head_", "model.hc_head.hc_"),
)
RENAMES = (
    (".scale", ".weight_scale_inv"),
    (".attn.", ".self_attn."),
    (".ffn.", ".mlp."),
    (".attn_norm.", ".input_layernorm."),
    (".ffn_norm.", ".post_attention_layernorm."),
    (".hc_attn_", ".attn_hc."),
    (".hc_ffn_", ".ffn_hc."),
    ("_hc.weight_scale_inv", "_hc.scale"),
    (".head.weight_scale_inv", ".head.scale"),
    ("_hc.fn", "_hc.fn.weight"),
    (".fn.weight.weight", ".fn.weight"),
    ("hc_head.hc_fn", "norm.head.fn.weight"),
    ("hc_head.hc_", "norm.head."),
    (".attn_sink", ".sinks"),
    (".compressor.indexer.", ".indexer.compressor."),
    (".indexer.compressor.q_b_proj.", ".indexer.wq_b."),
    (".indexer.compressor.scorer.", ".indexer."),
    (".self_attn.norm.", ".self_attn.kv_norm."),
    (".compressor.norm.", ".compressor.kv_norm."),
    (".ape", ".position_bias"),
    (".compressor.gate_proj.", ".compressor.gates."),
    (".wgate.", ".gates."),
    (".wkv.", ".kv_proj."),
    (".wq_a.", ".q_a_proj."),
    (".self_attn.wq_b.", ".self_attn.q_b_proj."),
    (".q_norm.", ".q_a_norm."),
    (".wo_a.", ".o_a_proj."),
    (".wo_b.", ".o_b_proj."),
    (".gate.bias", ".e_score_correction_bias"),
    CORRECTION_BIAS,
    (".gate.tid2eid", ".experts_of_ids.weight"),
    (".w1.", ".gate_proj."),
    (".w2.", ".down_proj."),
    (".w3.", ".up_proj."),
)
"""The names of released checkpoints and of transformers, and here."""
SCORINGS = ("sqrtsoftplus", "softmax", "sigmoid")


def compressed_config(context: BuildContext, kind: str) -> CompressedConfig:
    """Return the sizes of a layer's attention."""
    settings, size = context.model.hf_config, context.model.head_size
    turned, eps = turned_size(settings), float(settings["rms_norm_eps"])
    compressor = index_compressor = index = None
    if kind != SLIDING:
        compressor = CompressorConfig(
            size=size,
            turned=turned,
            tokens=int(rates(settings)[kind]),
            overlaps=kind == SPARSE,
            norm_eps=eps,
        )
    if compressor is not None and kind == SPARSE:
        index = IndexSpec(
            num_heads=int(settings["index_n_heads"]),
            head_size=int(settings["index_head_dim"]),
            num_picked=int(settings["index_topk"]),
        )
        index_compressor = replace(compressor, size=index.head_size)
    return CompressedConfig(
        query_rank=int(settings["q_lora_rank"]),
        head_size=size,
        turned=turned,
        window=int(settings["sliding_window"]),
        cached_tokens=cached_tokens(settings),
        groups=int(settings["o_groups"]),
        group_rank=int(settings["o_lora_rank"]),
        norm_eps=eps,
        compressor=compressor,
        index=index,
        index_compressor=index_compressor,
    )


def routing_rule(settings: Mapping[str, Any]) -> RoutingRule:
    """Return how experts are picked. Raises: ConfigError for a function that is not known."""
    scoring = settings["scoring_func"]
    if scoring not in SCORINGS:
        raise ConfigError(
            f'experts are not scored by "{scoring}" here.',
            where="config.json: scoring_func",
            fix=f"known are {', '.join(SCORINGS)}.",
        )
    return RoutingRule(
        num_picked=int(settings["num_experts_per_tok"]),
        scoring=scoring,
        renormalizes=True,
        least_sum=1e-20,
        factor=float(settings["routed_scaling_factor"]),
    )


class ExpertTable(DividedVectors):
    """The experts of each token id. Shapes: weight [V, A] int64"""

    def __init__(self, context: BuildContext, num_picked: int, num_experts: int) -> None:
        super().__init__()
        count = context.model.vocab_size
        rows = Part(name="", full=count, local=count, start=0)
        self.add_vector(context, "weight", (rows,), behind=(num_picked,), dtype=torch.int64)
        self._num_experts = num_experts

    def finish(self) -> None:
        """Check the table. Raises: ConfigError for experts that do not exist"""
        low, high = self.get_parameter("weight").aminmax()
        if low < 0 or high >= self._num_experts:
            raise ConfigError(
                f"a table picks the experts {int(low)} to {int(high)} for token ids, and there are "
                f"{self._num_experts}.",
                where="checkpoint: tid2eid",
            )


class HashedMoE(DeepseekMoE):
    """A mixture whose experts a table of token ids picks; the router weighs them."""

    def __init__(
        self, context: BuildContext, name: str, *, num_experts: int, **settings: Any
    ) -> None:
        super().__init__(context, name, num_experts=num_experts, **settings)
        self.experts_of_ids = ExpertTable(context, self.rule.num_picked, num_experts)

    def forward(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None = None,
        token_ids: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Shapes: x, residual [T, E], token_ids [T] -> [T, E]"""
        assert token_ids is not None and self.shared_experts is not None
        shared = self.shared_experts(x, residual)
        weights, experts = of_tensors(self._weighed, self.gate(x.float()), token_ids)
        more = (shared,) if self.group.rank == 0 else ()
        return all_reduce(self.experts(x, weights, experts, *more), self.group)

    def _weighed(self, scores: torch.Tensor, ids: torch.Tensor) -> tuple[torch.Tensor, ...]:
        experts = self.experts_of_ids.get_parameter("weight")[ids]
        return weigh(scores, self.rule, experts), experts


class DeepseekV4Layer(DecoderLayer):
    """A layer whose two parts read sums of the streams, and add to mixed ones."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        super().__init__(context, name, config, layer)
        plain, streams = unquantized(context), StreamsConfig.of_mixing(context)
        self.rope = SLIDING if self.layer_type == SLIDING else COMPRESSED
        self.attn_hc = MixingConnection(plain, f"{name}.attn_hc", streams)
        self.ffn_hc = MixingConnection(plain, f"{name}.ffn_hc", streams)
        self._spread = streams.count if layer == 0 else 0

    def build_attention(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's attention."""
        kind = config.layer_types[layer]
        entries = f"{name.partition('.layers.')[0]}.entries"
        sizes = compressed_config(context, kind)
        return CompressedAttention(context, unquantized(context), name, sizes, entries)

    def build_mlp(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's feed-forward part."""
        settings = context.model.hf_config
        inner = int(settings["moe_intermediate_size"])
        fields: dict[str, Any] = {
            "num_experts": int(settings["n_routed_experts"]),
            "rule": routing_rule(settings),
            "inner": inner,
            "act": clamped(config.hidden_act, float(settings["swiglu_limit"])),
            "shared_inner": inner,
            "routes_in_float32": True,
        }
        if is_hashed(settings, layer):
            return HashedMoE(context, name, **fields)
        return DeepseekMoE(context, name, has_correction_bias=True, **fields)

    def forward(
        self, x: torch.Tensor, ropes: Mapping[str, Rope], token_ids: torch.Tensor | None = None
    ) -> torch.Tensor:
        """Shapes: x [T, M E], of the first layer [T, E], token_ids [T] -> [T, M E]"""
        if self._spread:
            x = spread(self._spread, x)
        read, written, mixture = self.attn_hc(x)
        part = self.self_attn(self.input_layernorm(read), ropes[self.rope])
        x = self.attn_hc.added(x, written, mixture, part)
        read, written, mixture = self.ffn_hc(x)
        ids = (None, token_ids) if isinstance(self.mlp, HashedMoE) else ()
        part = self.mlp(self.post_attention_layernorm(read), *ids)
        return self.ffn_hc.added(x, written, mixture, part)


class DeepseekV4Model(DecoderModel):
    """A decoder of streams, which are joined after the last layer."""

    def __init__(
        self,
        context: BuildContext,
        name: str,
        config: DecoderConfig,
        layer_class: type[DecoderLayer] = DeepseekV4Layer,
    ) -> None:
        super().__init__(context, name, config, layer_class)
        streams = StreamsConfig.of_mixing(context)
        self.stage.width = streams.count * context.model.hidden_size
        plain = unquantized(context)
        self.norm = self.stage.last(lambda: JoinedNorm(plain, f"{name}.hc_head", streams))
        layers = (m for m in self.layers.modules() if isinstance(m, CompressedAttention))
        parts = tuple(part for layer in layers for part in layer.entry_parts)
        self.entries = Entries(f"{name}.entries", parts)

    def build_rotaries(self, context: BuildContext, layer_types: set[str]) -> nn.ModuleDict:
        """Return two tables: of layers with entries, whose rule may stretch positions, and of the
        others."""
        settings = context.model.hf_config
        size, found = turned_size(settings), {}
        theta = float(settings["rope_theta"])
        plain = unscaled(rope_settings(context, kind="main"), theta=theta)
        found[SLIDING] = Rotary(replace(plain, size=size), context.device)
        own = rope_settings(context, kind="compress")
        own = replace(
            own,
            size=size,
            theta=float(settings["compress_rope_theta"]),
            values={"attention_factor": 1.0, **own.values},
        )
        found[COMPRESSED] = Rotary(own, context.device)
        return nn.ModuleDict(found)

    def layer_arguments(
        self, x: torch.Tensor, token_ids: torch.Tensor, positions: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Return the tokens' ids, which pick experts. Shapes: x [T, E], both others [T]"""
        return (token_ids,)


class DeepseekV4ForCausalLM(DecoderForCausalLM):
    """DeepSeek V4 with a head, without its drafter."""

    info = Info(
        summary="DeepSeek V4 (compressed sparse attention, streams, mixture of experts)",
        source="https://huggingface.co/deepseek-ai/DeepSeek-V4-Flash-Base",
    )
    capabilities = DecoderForCausalLM.capabilities - {"vectors"}
    model_class: ClassVar[type[DecoderModel]] = DeepseekV4Model
    layer_class: ClassVar[type[DecoderLayer]] = DeepseekV4Layer
    no_graphs_because = "which entries are complete depends on how long rows are"

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the usual config."""
        return usual_config(model, layer_types=layer_types(model.hf_config))

    def weight_map(self) -> WeightMap:
        """Return the names, without the drafter's."""
        usual = super().weight_map()
        return replace(
            usual,
            prefixes=(*PREFIXES, *usual.prefixes),
            renames=(*usual.renames, *RENAMES),
            ignored=(*usual.ignored, "mtp."),
        )
