"""xLSTM: layers of a matrix memory (mLSTM) and of an MLP.

For the T tokens of a step (H heads, keys of S numbers, values of P; all sums are over a row):

    q, k, v, o = qkvo(x);  i, f = cap(gates(x))          # [T, H S] twice, [T, H P] twice, [T, H]
    C = sigmoid(f) C + e^i v k^T,  n = sigmoid(f) n + e^i k
    h = norm(C q / max(|n q|, 1)) * sigmoid(o)           # each head is normed; q over sqrt(S)
    x = x + out_proj(h)

C and n are the state of Mamba 2's recurrence, with n as one more row: its time step softplus(-f)
decays by sigmoid(f), and its input is e^i [v, 1] divided by the time step. Other implementations
divide all that by the largest e^i so far, because 16 bits could not hold it, and add 1e-6 to the
divisor, which the norm cancels; here sums are float32.
Source: Beck et al., xLSTM 7B: A Recurrent LLM for Fast and Efficient Inference, 2025 (arXiv
2503.13427).
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.decoder import DecoderConfig, DecoderForCausalLM, usual_config
from dovetail.layers.linear import Linear, RowParallelLinear, even_part
from dovetail.layers.norm import LayerNorm
from dovetail.layers.repeated import of_tensors
from dovetail.layers.state import Part, State
from dovetail.parallel.groups import tensor_group
from dovetail_kernels import ssd
from dovetail_kernels.op import Arguments
from dovetail_kernels.ssd import chunked
from dovetail_kernels.ssd.native import NO_LIMIT, Ssd
from dovetail_plugins.layers.mixers.hybrid import LINEAR, HybridLayer, UnrotatedModel
from dovetail_plugins.layers.mixers.recurrent import DividedVectors, OverRows
from dovetail_plugins.model_types.xlstm import head_sizes, inner_size

SUMS = "sums"
"""The state: C and n of each head."""
TRUNK = (
    ("backbone.embeddings.", "model.embed_tokens."),
    ("backbone.out_norm.", "model.norm."),
    ("backbone.blocks.", "model.layers."),
)
RENAMES = (
    (".norm_mlstm.", ".input_layernorm."),
    (".norm_ffn.", ".post_attention_layernorm."),
    (".multihead_norm.", ".norm_"),
    (".qkv_opreact.", ".qkvo."),
    (".ifgate_preact.", ".gates."),
    (".ffn.proj_up_gate_z.", ".mlp.gate_up_proj."),
    (".ffn.proj_down.", ".mlp.down_proj."),
    (".ffn.", ".mlp."),
)
PARTS = {
    **{part: ("qkvo", part) for part in "qkv"},
    "ogate_preact": ("qkvo", "o"),
    "igate_preact": ("gates", "i"),
    "fgate_preact": ("gates", "f"),
    "proj_up_gate": ("gate_up_proj", "gate"),
    "proj_up": ("gate_up_proj", "up"),
}


class MatrixMemory(DividedVectors):
    """The mixer of one layer. Heads are divided over ranks, their states with them."""

    def __init__(self, context: BuildContext, name: str) -> None:
        super().__init__()
        settings, hidden = context.model.hf_config, context.model.hidden_size
        heads, self.key_size, self.value_size = head_sizes(settings)
        self.cap, group = float(settings["gate_soft_cap"]), tensor_group(context.rank)
        widths = dict.fromkeys("qk", heads * self.key_size)
        widths |= dict.fromkeys("vo", heads * self.value_size)
        parts = [even_part(part, width, group, name) for part, width in widths.items()]
        own = tuple(even_part(part, heads, group, name) for part in "if")
        self.heads, self.widths = own[0].local, [part.local for part in parts]
        self.qkvo = Linear(context, f"{name}.q", hidden, tuple(parts), bias=False)
        self.gates = Linear(context, f"{name}.igate_preact", hidden, own, bias=True)
        eps = float(settings["norm_eps"])
        self.norm = LayerNorm(context, self.value_size, eps=eps, bias=False, weight=False)
        self.add_vector(context, "norm_weight", (even_part("", widths["v"], group, name),))
        self.out_proj = RowParallelLinear(context, f"{name}.out_proj", widths["v"], hidden)
        shape = (self.heads, self.value_size + 1, self.key_size)
        self.state = State(name, (Part(name=SUMS, shape=shape),))
        self.register_buffer("minus", -torch.ones(self.heads).to(context.device), persistent=False)
        self._sums = OverRows(ssd.OP, context, Ssd, self._bound, plain=chunked.run)

    def finish(self) -> None:
        """Make the native call. Mutates: self"""
        self._sums.finish()

    def _bound(self) -> Arguments:
        """Return the arguments of the recurrence that are this layer's."""
        return {"a": self.get_buffer("minus"), "d": None, "dt_bias": None, "dt_limit": NO_LIMIT}

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E]"""
        q, k, v, o = self.qkvo(x).split(self.widths, dim=-1)
        parts, rows = self.state.step()
        driven, steps, b, c = of_tensors(self._inputs, q, k, v, self.gates(x))
        y = self._sums(parts[SUMS], rows, x=driven, dt=steps, b=b, c=c)
        (read,) = of_tensors(self._read, y)
        (opened,) = of_tensors(self._opened, self.norm(read), o)
        return self.out_proj(opened.to(x.dtype), residual)

    def _inputs(
        self, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, gates: torch.Tensor
    ) -> tuple[torch.Tensor, ...]:
        """Return e^i [v, 1] over the time step, time steps before their softplus, keys and queries.

        Shapes: q, k [T, H S], v [T, H P], gates [T, 2 H] -> [T, H, P + 1], [T, H], [T, H, S] twice,
        all float32
        """
        own, forgets = (self.cap * torch.tanh(gates.float() / self.cap)).chunk(2, dim=-1)
        weight = (own.exp() / F.softplus(-forgets)).unsqueeze(-1)
        q, k, v = (one.float().unflatten(-1, (self.heads, -1)) for one in (q, k, v))
        driven = torch.cat([v * weight, weight], dim=-1)
        return driven, -forgets, k.contiguous(), q * self.key_size**-0.5

    def _read(self, y: torch.Tensor) -> tuple[torch.Tensor]:
        """Return each head's output. Shapes: y [T, H, P + 1] -> [T H, P]"""
        above, below = y.split((self.value_size, 1), dim=-1)
        return ((above / below.abs().clamp_min(1.0)).flatten(0, 1),)

    def _opened(self, normed: torch.Tensor, gate: torch.Tensor) -> tuple[torch.Tensor]:
        """Shapes: normed [T H, P], gate [T, H P] -> [T, H P]"""
        heads = normed.view(gate.shape) * self.get_parameter("norm_weight")
        return (heads * gate.sigmoid(),)


class XlstmLayer(HybridLayer):
    """One layer: a matrix memory and an MLP."""

    mixer_name = "mlstm_layer"
    mlp_name = "ffn"

    def build_mixer(self, context: BuildContext, name: str) -> nn.Module:
        """Return the layer's memory."""
        return MatrixMemory(context, name)


class XlstmForCausalLM(DecoderForCausalLM):
    """xLSTM with its head."""

    info = Info(summary="xLSTM: matrix memories", source="https://arxiv.org/abs/2503.13427")
    model_class = UnrotatedModel
    layer_class = XlstmLayer

    @classmethod
    def decoder_config(cls, model: ModelSpec) -> DecoderConfig:
        """Return the config: logits are capped. Raises: ConfigError for biases."""
        config = model.hf_config
        if config["use_bias"]:
            raise ConfigError(
                "norms with a bias are not supported.",
                where="config.json: use_bias",
                fix="use a checkpoint without biases, as all published ones are.",
            )
        return usual_config(
            model,
            layer_types=(LINEAR,) * model.num_layers,
            inner_size=inner_size(config),
            has_mlp_bias=False,
            norm_eps=float(config["norm_eps"]),
            final_logit_softcap=float(config["output_logit_soft_cap"]),
        )

    def weight_map(self) -> WeightMap:
        """Return the names: matrices of a layer are stored apart, or side by side."""
        usual = super().weight_map()
        return WeightMap(prefixes=TRUNK, renames=RENAMES, fused=PARTS, tied=usual.tied)
