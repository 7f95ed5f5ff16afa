"""A tiny transformer and plain linear layers: with the reference attention, enough to run a runner.

For tests of runners, workers and executors that must not need any other plugin. The weights are
made up from a seed, so no checkpoint is read.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import nn

from dovetail.engine.kv.kv_groups import block_bytes
from dovetail.interfaces.attention import AttentionSpec
from dovetail.interfaces.data.spec import ModelSpec, RunSpec, Selection
from dovetail.interfaces.data.step import CachedLayer, KVGroup, KVLayout
from dovetail.interfaces.kv_connector import TransferSpec
from dovetail.interfaces.load_format import Checkpoint, LoadFormat
from dovetail.interfaces.model import BuildContext, Model, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.quantization import LinearMethod, LinearSpec, QuantMethod
from dovetail.layers.attention import Attention
from dovetail.layers.dtypes import dtype_of
from dovetail.layers.linear.placement import mark_axes
from dovetail.layers.stages import Stage

HERE = "dovetail_testing.tiny.transformer"
REFERENCE_ATTENTION = Selection(
    kind="attention_backend",
    name="reference",
    target="dovetail_testing.reference:ReferenceAttention",
)
VOCAB = 96
HIDDEN = 32
HEADS, KV_HEADS, HEAD_SIZE = 4, 2, 8
WINDOW_TOKENS = 12


class PlainLinear(LinearMethod):
    """One weight, multiplied by torch."""

    def create(self, layer: nn.Module, spec: LinearSpec) -> None:
        """Register an empty weight. Mutates: layer"""
        empty = torch.empty(spec.out_size, spec.in_size, dtype=dtype_of(spec.dtype))
        weight = nn.Parameter(empty, requires_grad=False)
        layer.register_parameter("weight", mark_axes(weight, output=0, input=1))

    def apply(self, layer: nn.Module, x: torch.Tensor, bias: torch.Tensor | None) -> torch.Tensor:
        """Return x W^T + bias."""
        out: torch.Tensor = F.linear(x, layer.get_parameter("weight"), bias)
        return out


class PlainWeights(QuantMethod):
    """Gives every layer a PlainLinear."""

    info = Info(summary="test method: full-precision weights")

    def __init__(self, options: Any, model: ModelSpec) -> None:
        self.options = options

    def linear(self, spec: LinearSpec) -> LinearMethod:
        """Return the plain method."""
        return PlainLinear()


class NoTensors(LoadFormat):
    """A checkpoint without tensors."""

    info = Info(summary="test format: yields nothing")

    def tensors(self, checkpoint: Checkpoint) -> Iterator[tuple[str, torch.Tensor]]:
        """Yield nothing."""
        return iter(())


class _Block(nn.Module):
    """Attention and a feed-forward layer, both with a residual."""

    def __init__(self, name: str, window_tokens: int | None) -> None:
        super().__init__()
        self.qkv = nn.Linear(HIDDEN, (HEADS + 2 * KV_HEADS) * HEAD_SIZE)
        self.out = nn.Linear(HEADS * HEAD_SIZE, HIDDEN)
        self.feed = nn.Linear(HIDDEN, HIDDEN)
        self.attention = Attention(
            name,
            AttentionSpec(
                num_heads=HEADS,
                num_kv_heads=KV_HEADS,
                head_size=HEAD_SIZE,
                scale=HEAD_SIZE**-0.5,
                window_tokens=window_tokens,
            ),
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        sizes = (HEADS * HEAD_SIZE, KV_HEADS * HEAD_SIZE, KV_HEADS * HEAD_SIZE)
        q, k, v = self.qkv(F.layer_norm(x, (HIDDEN,))).split(sizes, dim=-1)
        x = x + self.out(self.attention(q, k, v))
        out: torch.Tensor = x + self.feed(F.layer_norm(x, (HIDDEN,)))
        return out


class TinyModel(nn.Module, Model):
    """Two layers of made-up weights; config.json key `window` makes the second one slide."""

    info = Info(summary="test model: a tiny transformer with made-up weights")
    capabilities = frozenset({"no_weights", "pipeline_parallel"})

    def __init__(self, options: Any, context: BuildContext) -> None:
        nn.Module.__init__(self)
        self.stage = Stage(context)
        window = context.model.hf_config.get("window")
        self.embed = nn.Embedding(VOCAB, HIDDEN)
        self.blocks = nn.ModuleList([_Block("a", None), _Block("b", window)])
        self.head = nn.Linear(HIDDEN, VOCAB)
        generator = torch.Generator().manual_seed(11)
        for parameter in self.parameters():
            noise = torch.randn(parameter.shape, generator=generator, device="cpu")
            parameter.data.copy_(noise * 0.3)
        # Made up for all layers, so that each stage gets the same values.
        self.blocks = self.stage.layers(self.blocks.__getitem__)

    def weight_map(self) -> WeightMap:
        """Return an empty map."""
        return WeightMap()

    def forward(self, token_ids: torch.Tensor, positions: torch.Tensor) -> torch.Tensor:
        """Return the final hidden states. Shapes: [T] -> [T, E]"""
        rates = torch.arange(1, HIDDEN + 1, device=positions.device) / HIDDEN
        x: torch.Tensor
        if self.stage.is_first:
            dtype = self.embed.weight.dtype
            x = self.embed(token_ids) + torch.sin(positions.unsqueeze(1) * rates).to(dtype)
        else:
            x = self.stage.received(token_ids)
        for block in self.blocks:
            x = block(x)
        return x

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits. Shapes: [S, E] -> [S, V]"""
        out: torch.Tensor = self.head(F.layer_norm(hidden, (HIDDEN,)) * 3)
        return out


def tiny_run(
    *,
    device: str = "cpu",
    model: str = "TinyModel",
    attention: Selection | None = None,
    hf_config: dict[str, Any] | None = None,
    logits_processors: tuple[Selection, ...] = (),
    max_rows: int = 8,
    max_step_tokens: int = 256,
    max_model_tokens: int = 128,
    block_tokens: int = 4,
    vocab_size: int = VOCAB,
    async_steps: bool = False,
    worker_extension: str = "",
    transfer: TransferSpec | None = None,
) -> RunSpec:
    """Return a RunSpec of a test model; `model` is a class here or "module:Class"."""
    target = model if ":" in model else f"{HERE}:{model}"
    facts = ModelSpec(
        path="nowhere",
        architecture=target.partition(":")[2],
        hf_config=hf_config or {},
        dtype="float32",
        vocab_size=vocab_size,
        hidden_size=HIDDEN,
        num_layers=2,
        num_heads=HEADS,
        num_kv_heads=KV_HEADS,
        head_size=HEAD_SIZE,
        max_position_tokens=max_model_tokens,
        eos_token_ids=(0,),
    )
    return RunSpec(
        model=facts,
        device=device,
        kv_dtype="float32",
        block_tokens=block_tokens,
        max_rows=max_rows,
        max_step_tokens=max_step_tokens,
        max_model_tokens=max_model_tokens,
        seed=0,
        model_plugin=Selection(kind="model", name="tiny", target=target),
        load_format=selected("load_format", "NoTensors"),
        quantization=selected("quantization", "PlainWeights"),
        attention=attention or REFERENCE_ATTENTION,
        logits_processors=logits_processors,
        num_threads=1,
        async_steps=async_steps,
        worker_extension=worker_extension,
        transfer=transfer,
        shows_progress=False,
    )


def selected(kind: str, name: str) -> Selection:
    """Return the selection of a class in this file."""
    return Selection(kind=kind, name=name, target=f"{HERE}:{name}")


def tiny_layout(
    layers: Sequence[CachedLayer], *, num_blocks: int = 64, block_tokens: int = 4
) -> KVLayout:
    """Return a layout with one group per window length, layer i of each in tensor i."""
    by_window: dict[int | None, list[str]] = {}
    for layer in layers:
        by_window.setdefault(layer.window_tokens, []).append(layer.name)
    groups = tuple(
        KVGroup(layers=tuple(names), window_tokens=window) for window, names in by_window.items()
    )
    return KVLayout(
        groups=groups,
        num_tensors=max(len(group.layers) for group in groups),
        num_blocks=num_blocks,
        block_tokens=block_tokens,
        block_bytes=max(block_bytes(layer, block_tokens) for layer in layers),
    )
