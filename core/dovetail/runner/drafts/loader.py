"""Builds and fills a drafter model from its own checkpoint."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import cast

import msgspec
import torch
from torch import nn

from dovetail import registry
from dovetail.errors import BrokenPlugin, ConfigError
from dovetail.interfaces.data.spec import ModelSpec, RankSpec, RunSpec, WorkerDraftSpec
from dovetail.interfaces.data.step import CachedLayer
from dovetail.interfaces.drafter import DraftContext, WorkerDrafter
from dovetail.interfaces.load_format import LoadFormat
from dovetail.interfaces.model import Model
from dovetail.layers.attention import Attention, attention_layers
from dovetail.layers.attention.latent import LatentAttention
from dovetail.layers.decoder import DecoderModel
from dovetail.layers.embedding import VocabParallelEmbedding
from dovetail.layers.weights import checkpoint_shapes
from dovetail.runner.load.loader import build_context, building, fill, method_of, num_bytes, reading

log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True, kw_only=True)
class DraftTarget:
    """The target model of a drafter (interfaces.drafter.TargetModel)."""

    spec: ModelSpec
    rank: RankSpec
    model: Model

    def embed(self, token_ids: torch.Tensor) -> torch.Tensor:
        """Return the tokens' embeddings. Shapes: [T] -> [T, E]. Raises: BrokenPlugin"""
        for module in cast(nn.Module, self.model).modules():
            if isinstance(module, VocabParallelEmbedding):
                found: torch.Tensor = module(token_ids)
                return found
        raise BrokenPlugin(
            f"{type(self.model).__name__} has no VocabParallelEmbedding.",
            where="--speculative-config.method",
            fix="use a drafter with its own table, such as draft_model.",
        )

    def logits(self, hidden: torch.Tensor) -> torch.Tensor:
        """Return logits of final hidden states. Shapes: [S, E] -> [S, V]"""
        return self.model.logits(hidden)

    def attention(self, name: str) -> Attention:
        """Return the model's attention layer of this name. Raises: BrokenPlugin"""
        layers = attention_layers(cast(nn.Module, self.model))
        for layer in layers:
            if layer.name == name:
                return layer
        raise BrokenPlugin(
            f"{type(self.model).__name__} has no attention layer {name}.",
            where="--speculative-config.method",
            fix="use a drafter that reads no cache of the model.",
        )


def drafter_run(run: RunSpec, spec: WorkerDraftSpec) -> RunSpec:
    """Return the target's run with the drafter's checkpoint as the model."""
    rank = RankSpec(local_rank=run.rank.local_rank)
    if spec.is_divided:  # not over other engines, which draft at different times
        rank = msgspec.structs.replace(run.rank, data_rank=0, data_size=1)
    return msgspec.structs.replace(
        run,
        model=spec.model,
        model_plugin=spec.model_plugin or run.model_plugin,
        load_format=spec.load_format,
        quantization=spec.quantization,
        attention=spec.attention,
        max_model_tokens=spec.max_model_tokens,
        rank=rank,
        kv_scales=(),
        kv_steps=None,
        offload_bytes=0,
        expert_placement="",
        expert_balance=None,
        drafts=None,
        adapters=None,
    )


def load_drafter(
    spec: WorkerDraftSpec, run: RunSpec, target: DraftTarget, device: torch.device
) -> WorkerDrafter:
    """Return the drafter with its weights. `run` is its own. Raises: ConfigError"""
    names = partial(registry.admin.load_selection(spec.drafter).own_names, target=target.spec)
    quant = method_of(run, names)
    with building(run, spec.drafter, device):
        plugin = registry.admin.require_selection(spec.drafter)
        context = DraftContext(
            build=build_context(run, device, quant),
            target=target,
            max_draft_tokens=spec.max_tokens,
            model_plugin=spec.model_plugin,
        )
        drafter: WorkerDrafter = plugin(registry.admin.build_options(spec.drafter), context)
    module = drafter.module()
    with torch.inference_mode():
        load_format = cast(LoadFormat, registry.make(run.load_format))
        shapes = None
        if "random_weights" in load_format.capabilities:
            shapes = checkpoint_shapes(module, cast(Model, module).weight_map())
        with reading(run, device, shapes, lambda name: not drafter.reads(name)) as checkpoint:
            tensors = load_format.tensors(checkpoint)
            used = ((name, tensor) for name, tensor in tensors if drafter.reads(name))
            found = _checked(used, run.model.path)
            fill(module, drafter.tensors(found), quant, run.rank)
    module.eval().requires_grad_(False)
    log.info("loaded the drafter %s: %.1f MiB", spec.drafter.name, num_bytes(module) / 2**20)
    return drafter


def look_into(model: Model, layers: tuple[int, ...], inner: dict[int, torch.Tensor | None]) -> None:
    """Make a model save the inputs of these layers in `inner`. Raises: ConfigError.

    Mutates: model, inner
    """
    if not layers:
        return
    modules = cast(nn.Module, model).modules()
    decoder = next((m for m in modules if isinstance(m, DecoderModel)), None)
    if decoder is None or max(layers) >= len(decoder.layers) or min(layers) < 0:
        raise ConfigError(
            f"the drafter reads states within the model, and {type(model).__name__} does not tell "
            f"those of the layers {', '.join(map(str, layers))}.",
            where="--speculative-config.method",
            fix="use a drafter of the last hidden states, such as eagle.",
        )
    inner.update(dict.fromkeys(layers))
    decoder.inner = inner


def _checked(
    tensors: Iterable[tuple[str, torch.Tensor]], path: str
) -> Iterator[tuple[str, torch.Tensor]]:
    """Yield the tensors unchanged; values that are not finite would silently give useless drafts.

    Raises: ConfigError
    """
    for name, tensor in tensors:
        if tensor.is_floating_point() and not bool(torch.isfinite(tensor.float()).all()):
            raise ConfigError(
                f'the tensor "{name}" of the drafter holds NaN or infinite values.',
                where=path,
                fix="fetch the checkpoint again, or use another one.",
            )
        yield name, tensor


def kept_layers(drafter: nn.Module, run: RunSpec) -> list[CachedLayer]:
    """Return what a drafter's layers cache: keys and values, or latents."""
    keys = [one.kv_layer(run.kv_dtype, is_draft=True) for one in attention_layers(drafter)]
    latents = (m.kept(run) for m in drafter.modules() if isinstance(m, LatentAttention))
    own = (msgspec.structs.replace(one, is_draft=True) for one in latents if one is not None)
    return [*keys, *own]


def states_within(inputs: Mapping[int, torch.Tensor | None], layers: Sequence[int]) -> torch.Tensor:
    """Return the saved inputs of layers, concatenated. Shapes: -> [T, layers * E]"""
    found = [state for number in layers if (state := inputs[number]) is not None]
    assert len(found) == len(layers), "a step leaves the inputs of its layers"
    return torch.cat(found, dim=-1)
