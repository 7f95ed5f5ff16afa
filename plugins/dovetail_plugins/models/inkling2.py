"""Inkling 2: Inkling's attention by distance and its convolutions, with clipped heads, sinks and
gates; parts of layers read what earlier blocks of layers added by attention over depth; gates and
inputs of experts are bent. In the variant that loops, some layers run several times, and each time
after the first they also read what the time before left.

A layer computes, of the T tokens of a step, with c(y) = (y + conv(y)) / sqrt(taps + 1):

    q, k, v = matrices of norms of reads                 # in layers without a window three reads
    a = attention(clip(q s_q), clip(c_k(k)), norm(c_v(v)), clip(r s_r)) sigmoid(gate)
    a = c_a(o_proj(a)),  and h + a unless the layer begins a block
    h = a + c_m(mlp(norm(read)))

In layers without a window each token adds to the taps of c_k and c_v.
Source: Thinking Machines Lab, Inkling 2, 2026, as transformers has it.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, ClassVar

import torch
import torch.nn.functional as F
from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.attention import AttentionSpec
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.quantization import Gate
from dovetail.layers.attention.rotary import Rope
from dovetail.layers.context import keep_inner
from dovetail.layers.decoder import (
    FULL,
    SLIDING,
    DecoderConfig,
    DecoderLayer,
    DecoderModel,
    usual_config,
)
from dovetail.layers.linear import ColumnParallelLinear, Linear, RowParallelLinear
from dovetail.layers.linear.placement import Part
from dovetail.layers.linear.sharded import split_heads
from dovetail.layers.media import with_media
from dovetail.layers.state import State
from dovetail.parallel.groups import tensor_group
from dovetail_plugins.layers.attention.output_gate import OutputGate
from dovetail_plugins.layers.attention.relative import DistanceBank, RelativeAttention
from dovetail_plugins.layers.mixers.recurrent import DividedVectors
from dovetail_plugins.layers.moe import MoE
from dovetail_plugins.layers.routing import RoutingRule
from dovetail_plugins.layers.short_convs import AddedConv, MixedConv, Step, whole_part
from dovetail_plugins.layers.stream_reads import LastRead, MessageGate, StreamRead, read_streams
from dovetail_plugins.model_types.inkling import WINDOWED, layer_types, loop_of
from dovetail_plugins.models.deepseek import unquantized
from dovetail_plugins.models.inkling import InklingForCausalLM, NormedModel, log_scale, of_layer

PREFIXES = (
    ("model.llm.unembed.", "lm_head."),
    ("model.llm.embed.", "model.embed_tokens."),
    ("model.llm.norm.", "model.norm.norm."),
    ("model.llm.attn_res.output_query", "model.norm.read.query"),
    ("model.llm.", "model."),
)
RENAMES = (
    (".controllers.attn.", ".controllers.q."),
    (".attn.", ".self_attn."),
    (".wq_du.", ".q_proj."),
    (".wk_dv.", ".k_proj."),
    (".wv_dv.", ".v_proj."),
    (".wr_du.", ".r_proj."),
    (".wo_ud.", ".o_proj."),
    (".gate_attn.", ".out_gate."),
    (".attn_sink_proj.", ".sink_proj."),
    (".rel_l2_clip.", ".r_clip."),
    (".q_l2_clip.", ".q_clip."),
    (".weight_proj", ".weight_proj.weight"),
    (".weight_proj.weight.weight", ".weight_proj.weight"),
    (".experts.w13_weight", ".experts.gate_up_proj"),
    (".experts.w2_weight", ".experts.down_proj"),
    (".mlp.gate.bias", ".mlp.e_score_correction_bias"),
    (".mlp_norm.", ".post_attention_layernorm."),
    (".attn_norm.", ".input_norm."),
)
QUERIES = re.compile(r"attn_res\.(attn|mlp)_queries\.(\d+)$")
"""The names of reads' queries: those before attention are counted from the second layer on."""
CLIP_EPS = 1e-6


def layer_names(
    tensors: Iterable[tuple[str, torch.Tensor]],
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield tensors with the queries of reads under the names of their layers."""
    for name, tensor in tensors:
        found = QUERIES.search(name)
        if found is not None:
            part, number = found[1], int(found[2])
            layer = number + 1 if part == "attn" else number
            name = f"{name[: found.start()]}layers.{layer}.{part}_read.query"
        yield name, tensor


def bent(x: torch.Tensor, cap: float) -> torch.Tensor:
    """Return x bent to stay within the cap."""
    return cap * torch.tanh(x / cap)


def bent_gate(settings: Mapping[str, Any]) -> Gate:
    """Return the gate of experts: bent(g) sigmoid(g) bent(u). Raises: ConfigError for another
    activation."""
    if settings["hidden_act"] != "silu":
        raise ConfigError(
            f'activation "{settings["hidden_act"]}" is not supported in Inkling 2.',
            where="config.json: hidden_act",
            fix="use a checkpoint with silu, as the published ones have.",
        )
    of_gate, of_input = float(settings["mlp_gate_softcap"]), float(settings["mlp_up_softcap"])

    def function(x: torch.Tensor) -> torch.Tensor:
        return bent(x, of_gate) * x.sigmoid()

    def halves(gate_up: torch.Tensor) -> torch.Tensor:
        first, second = gate_up.float().chunk(2, dim=-1)
        return (function(first) * bent(second, of_input)).to(gate_up.dtype)

    return Gate(name="", function=function, halves=halves)


def clipped(x: torch.Tensor, limit: float) -> torch.Tensor:
    """Return vectors no longer than the limit. Shapes: x [..., D] -> [..., D] float32"""
    x = x.float()
    norm = torch.linalg.vector_norm(x, dim=-1, keepdim=True)
    return x * (limit / (norm + CLIP_EPS)).clamp(max=1.0)


class HeadClip(DividedVectors):
    """Heads times learned numbers, clipped. Shapes: scale [H, D]"""

    def __init__(
        self, context: BuildContext, num_heads: int, local: int, size: int, limit: float
    ) -> None:
        super().__init__()
        start = tensor_group(context.rank).rank * local
        part = Part(name="", full=num_heads, local=local, start=start)
        self.add_vector(context, "scale", (part,), behind=(size,))
        self._limit = limit

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x [T, H*D] -> [T, H*D]"""
        scale = self.get_parameter("scale").float()
        heads = x.float().unflatten(-1, scale.shape) * scale
        return clipped(heads, self._limit).flatten(1).to(x.dtype)


class Inkling2Attention(nn.Module):
    """The attention of one layer, which runs `turns` times, each with its own cache."""

    def __init__(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int, turns: int
    ) -> None:
        super().__init__()
        context = of_layer(context, layer)
        model, settings, plain = context.model, context.model.hf_config, unquantized(context)
        size, hidden, rank = model.head_size, model.hidden_size, int(settings["d_rel"])
        group = tensor_group(context.rank)
        local, local_kv = split_heads(group, model.num_heads, model.num_kv_heads, name)
        pair = Part(
            name="",
            full=model.num_kv_heads * size,
            local=local_kv * size,
            start=group.rank * model.num_kv_heads // group.size * size,
        )
        width = model.num_heads * size
        self.q_proj = ColumnParallelLinear(context, f"{name}.wq_du", hidden, width)
        self.k_proj = Linear(context, f"{name}.wk_dv", hidden, (pair,), bias=False)
        self.v_proj = Linear(context, f"{name}.wv_dv", hidden, (pair,), bias=False)
        self.r_proj = ColumnParallelLinear(context, f"{name}.wr_du", hidden, model.num_heads * rank)
        self.out_gate = ColumnParallelLinear(context, f"{name}.gate_attn", hidden, width)
        self.sink_proj = ColumnParallelLinear(
            plain, f"{name}.attn_sink_proj", hidden, model.num_heads
        )
        self.o_proj = RowParallelLinear(context, f"{name}.wo_ud", width, hidden)
        self.limit = float(settings["qk_l2_clip_threshold"])
        self.q_clip = HeadClip(context, model.num_heads, local, size, self.limit)
        self.r_clip = HeadClip(
            context, model.num_heads, local, rank, float(settings["rel_l2_clip_threshold"])
        )
        taps = int(settings["conv_kernel_size"])
        self.is_windowed = config.layer_types[layer] == SLIDING
        self.k_sconv, self.v_sconv = (
            AddedConv(context, n, pair, taps, factor=(taps + 1) ** -0.5)
            if self.is_windowed
            else MixedConv(
                plain,
                n,
                f"{name}.{n}_sconv",
                pair,
                taps,
                head_size=size,
                factor=(2 * taps + 1) ** -0.5,
            )
            for n in "kv"
        )
        window = config.window_tokens if self.is_windowed else None
        extent = window or int(settings["rel_extent"])
        self.rel_logits_proj = DistanceBank(context, rank, extent)
        spec = AttentionSpec(
            num_heads=local,
            num_kv_heads=local_kv,
            head_size=size,
            scale=size**-0.5,
            window_tokens=window,
        )
        scaled = None if self.is_windowed else log_scale(settings)
        names = [name, *(f"{name}.turns.{turn}" for turn in range(1, turns))]
        self.turns = nn.ModuleList(RelativeAttention(one, spec, scaled) for one in names)
        self._size, self._eps = size, config.norm_eps
        self._open = OutputGate(context)

    def forward(
        self, xq: torch.Tensor, xk: torch.Tensor, xv: torch.Tensor, step: Step, turn: int
    ) -> torch.Tensor:
        """Shapes: xq, xk, xv [T, E] -> [T, E]. Mutates: the states"""
        k = self._convolved(self.k_sconv, self.k_proj(xk), xk, step)
        v = self._convolved(self.v_sconv, self.v_proj(xv), xv, step)
        heads = k.unflatten(-1, (-1, self._size))
        k = clipped(heads, self.limit).flatten(1).to(k.dtype)
        heads = v.float().unflatten(-1, (-1, self._size))
        v = F.rms_norm(heads, (self._size,), None, self._eps).flatten(1).to(v.dtype)
        q, mixes = self.q_clip(self.q_proj(xq)), self.r_clip(self.r_proj(xq))
        bank, sinks = self.rel_logits_proj.proj, self.sink_proj(xq)
        attended = self.turns[turn](q, k, v, mixes, bank, sinks)
        return self.o_proj(self._open(attended, self.out_gate(xq)))

    def _convolved(
        self, conv: nn.Module, x: torch.Tensor, source: torch.Tensor, step: Step
    ) -> torch.Tensor:
        if isinstance(conv, MixedConv):
            return conv.added(x, step, source)
        assert isinstance(conv, AddedConv)
        return conv.added(x, step)


class Inkling2Layer(DecoderLayer):
    """One layer, which reads blocks of earlier ones."""

    def __init__(self, context: BuildContext, name: str, config: DecoderConfig, layer: int) -> None:
        nn.Module.__init__(self)
        settings = context.model.hf_config
        self.layer_type = self.rope = config.layer_types[layer]
        self.begins_block = layer % int(settings["n_layers_per_attn_res_block"]) == 0
        self._size = context.model.hidden_size
        loop = loop_of(settings)
        turns = loop.turns if loop is not None and layer in loop.layers else 1
        is_windowed = self.layer_type == SLIDING
        self.attn_read = StreamRead(context, 1 if is_windowed else 3) if layer else None
        self.mlp_read = StreamRead(context)
        self.self_attn = Inkling2Attention(context, f"{name}.attn", config, layer, turns)
        self.mlp = self.build_mlp(context, f"{name}.mlp", config, layer)
        if is_windowed:
            self.input_norm = config.build_norm(context)
        else:
            self.q_input_norm, self.k_input_norm, self.v_input_norm = (
                config.build_norm(context) for _ in "qkv"
            )
        self.post_attention_layernorm = config.build_norm(context)
        taps, part = int(settings["conv_kernel_size"]), whole_part(self._size)
        self.attn_sconv, self.mlp_sconv = (
            AddedConv(context, n, part, taps, factor=(taps + 1) ** -0.5) for n in ("attn", "mlp")
        )
        convs = (self.self_attn.k_sconv, self.self_attn.v_sconv, self.attn_sconv, self.mlp_sconv)
        parts = tuple(conv.part for conv in convs)
        names = [f"{name}.convs", *(f"{name}.convs.{turn}" for turn in range(1, turns))]
        self.convs = nn.ModuleList(State(one, parts) for one in names)
        self.controllers = nn.ModuleDict()
        if loop is not None and layer in loop.layers:
            for part_name in ("q", "k", "v", "mlp"):
                self.controllers[part_name] = MessageGate(context, loop.rank, eps=config.norm_eps)

    def build_mlp(
        self, context: BuildContext, name: str, config: DecoderConfig, layer: int
    ) -> nn.Module:
        """Return the layer's experts. Raises: ConfigError for other scores than sigmoids"""
        settings = context.model.hf_config
        if settings["scoring_func"] != "sigmoid":
            raise ConfigError(
                f'experts are scored by "{settings["scoring_func"]}".',
                where="config.json: scoring_func",
                fix="use a checkpoint with sigmoid, as the published ones have.",
            )
        return MoE(
            context,
            name,
            num_experts=int(settings["n_routed_experts"]),
            rule=RoutingRule(
                num_picked=int(settings["num_experts_per_tok"]),
                scoring="sigmoid",
                renormalizes=True,
                least_sum=1e-20,
                factor=float(settings["route_scale"]),
            ),
            inner=int(settings["moe_intermediate_size"]),
            act=bent_gate(settings),
            alternates=True,
            routes_in_float32=True,
            has_correction_bias=True,
        )

    def forward(self, x: torch.Tensor, ropes: Mapping[str, Rope]) -> torch.Tensor:
        """Shapes: x [T, (1 + n) E], the running block first -> the same, or with one more block"""
        streams = x.unflatten(-1, (-1, self._size))
        hidden, blocks = self.passed(streams[:, 0], streams[:, 1:])
        return torch.cat([hidden.unsqueeze(1), blocks], dim=1).flatten(1)

    def passed(
        self,
        hidden: torch.Tensor,
        blocks: torch.Tensor,
        turn: int = 0,
        messages: Sequence[torch.Tensor] = (),
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return the running block's sum and all whole blocks; `messages` are for q, k, v and MLP.
        Shapes: hidden [T, E], blocks [T, n, E], messages [T, E] each"""
        state, dtype = self.convs[turn], hidden.dtype
        assert isinstance(state, State)
        step = state.step()
        q, k, v = self._inputs(hidden, blocks, messages)
        attended = self.self_attn(q, k, v, step, turn)
        running = self.attn_sconv.added(attended, step).float()
        if self.begins_block:
            blocks = torch.cat([blocks, hidden.unsqueeze(1)], dim=1)
        else:
            running = running + hidden.float()
        (read,) = self.mlp_read(blocks, running)
        if messages:
            read = self.controllers["mlp"](read, messages[3])
        fed = self.mlp(self.post_attention_layernorm(read.to(dtype)))
        return (running + self.mlp_sconv.added(fed, step).float()).to(dtype), blocks

    def _inputs(
        self, hidden: torch.Tensor, blocks: torch.Tensor, messages: Sequence[torch.Tensor]
    ) -> list[torch.Tensor]:
        """Return the inputs of queries, keys and values. Shapes: as `passed`"""
        is_windowed = self.layer_type == SLIDING
        reads = (hidden.float(),) if self.attn_read is None else self.attn_read(blocks, hidden)
        norms = (
            [self.input_norm] * 3
            if is_windowed
            else [self.q_input_norm, self.k_input_norm, self.v_input_norm]
        )
        each = reads * 3 if len(reads) == 1 else reads
        if messages:
            gates = (self.controllers[name] for name in "qkv")
            each = tuple(
                gate(read, message)
                for gate, read, message in zip(gates, each, messages[:3], strict=True)
            )
        elif is_windowed:
            return [self.input_norm(reads[0].to(hidden.dtype))] * 3
        return [norm(read.to(hidden.dtype)) for norm, read in zip(norms, each, strict=True)]


class BlocksModel(NormedModel):
    """A decoder whose layers pass on the sums of blocks, which are read once more at the end."""

    def __init__(
        self,
        context: BuildContext,
        name: str,
        config: DecoderConfig,
        layer_class: type[DecoderLayer] = Inkling2Layer,
    ) -> None:
        super().__init__(context, name, config, layer_class)
        self.norm = self.stage.last(lambda: LastRead(context, config))
        each = int(context.model.hf_config["n_layers_per_attn_res_block"])
        num_blocks = -(-self.stage.numbers[0] // each)
        self.stage.width = (1 + num_blocks) * context.model.hidden_size


class LoopModel(BlocksModel):
    """The same, with layers that run several times. Shapes: middle_cycle_cross_pass_queries and
    middle_cycle_cross_pass_kv_queries [2 L, E] of L looping layers, float32"""

    def __init__(
        self,
        context: BuildContext,
        name: str,
        config: DecoderConfig,
        layer_class: type[DecoderLayer] = Inkling2Layer,
    ) -> None:
        super().__init__(context, name, config, layer_class)
        loop = loop_of(context.model.hf_config)
        assert loop is not None, "only models with a loop are of this class"
        self.loop = loop
        shape = (2 * len(loop.layers), context.model.hidden_size)

        def empty() -> nn.Parameter:
            return nn.Parameter(torch.empty(shape, device=context.device), requires_grad=False)

        self.middle_cycle_cross_pass_queries = empty()
        self.middle_cycle_cross_pass_kv_queries = empty()

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Shapes: token_ids, positions [T] -> [T, E]"""
        hidden = with_media(self.embed(token_ids, positions), self.config.branch_scale)
        blocks = hidden.new_zeros(len(hidden), 0, hidden.shape[-1])
        looped = self.loop.layers
        for number in range(looped.start):
            hidden, blocks = self._visit(number, hidden, blocks)
        start, own = (hidden, blocks), blocks.shape[1] + 1
        for turn in range(self.loop.turns):
            before = blocks[:, own:], hidden
            hidden, blocks = start
            for number in looped:
                messages = self._messages(number - looped.start, *before) if turn else ()
                hidden, blocks = self._visit(number, hidden, blocks, turn, messages)
        for number in range(looped.stop, len(self.layers)):
            hidden, blocks = self._visit(number, hidden, blocks)
        out: torch.Tensor = self.norm(torch.cat([hidden.unsqueeze(1), blocks], dim=1).flatten(1))
        return out

    def _visit(
        self,
        number: int,
        hidden: torch.Tensor,
        blocks: torch.Tensor,
        turn: int = 0,
        messages: Sequence[torch.Tensor] = (),
    ) -> tuple[torch.Tensor, torch.Tensor]:
        if self.inner is not None and number in self.inner:
            keep_inner(self.inner, number, hidden)
        layer = self.layers[number]
        assert isinstance(layer, Inkling2Layer)
        return layer.passed(hidden, blocks, turn, messages)

    def _messages(
        self, number: int, blocks: torch.Tensor, hidden: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Return what a looping layer's q, k, v and MLP read of the time before. Shapes: blocks
        [T, n, E], hidden [T, E] -> 4 times [T, E] float32"""
        own = slice(2 * number, 2 * number + 2)
        of_q, of_mlp = self.middle_cycle_cross_pass_queries[own]
        of_k, of_v = self.middle_cycle_cross_pass_kv_queries[own]
        return read_streams(torch.stack([of_q, of_k, of_v, of_mlp]), blocks, hidden)


class Inkling2ForCausalLM(InklingForCausalLM):
    """Inkling 2's text model with its head."""

    info = Info(
        summary="Inkling 2, text only (reads of blocks, mixed convolutions, sinks, experts)",
        source="https://huggingface.co/thinkingmachines/Inkling-2-Small-MXFP8",
    )
    model_class: ClassVar[type[DecoderModel]] = BlocksModel
    layer_class: ClassVar[type[DecoderLayer]] = Inkling2Layer

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config: nothing is rotated, logits are bent."""
        settings = model.hf_config
        kinds = layer_types(settings)
        return usual_config(
            model,
            layer_types=tuple(SLIDING if kind == WINDOWED else FULL for kind in kinds),
            window_tokens=int(settings["sliding_window_size"]),
            final_logit_softcap=float(settings["final_logit_softcapping"]),
            is_tied=False,
        )

    def weight_map(self) -> WeightMap:
        """Return the names of released checkpoints, which transformers writes too."""
        usual = super().weight_map()
        return replace(
            usual,
            prefixes=PREFIXES,
            renames=RENAMES,
            fused={},
            transposed=(".static_w",),
            conversion=layer_names,
        )


class Inkling2LoopForCausalLM(Inkling2ForCausalLM):
    """The variant with layers that run several times."""

    info = Info(
        summary="Inkling 2 with layers that run several times, text only",
        source="https://huggingface.co/thinkingmachines/Inkling-2-Mini",
    )
    capabilities = Inkling2ForCausalLM.capabilities - {"pipeline_parallel"}
    whole_because = "some of its layers run several times"
    model_class: ClassVar[type[DecoderModel]] = LoopModel
