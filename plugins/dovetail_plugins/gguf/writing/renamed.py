"""Tensors of a checkpoint under GGUF's names and shapes: the inverse of `reading/tensors.py`."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Iterator

import torch

from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec
from dovetail_plugins.gguf.blocks.types import FLOAT_DTYPES, QUANTIZED
from dovetail_plugins.gguf.families import families
from dovetail_plugins.gguf.families.family import FamilyNames
from dovetail_plugins.gguf.writing.names import WrittenNames
from dovetail_plugins.gguf.writing.write import Stored

log = logging.getLogger(__name__)
_NOT_STORED = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")


def renamed(
    model: ModelSpec, architecture: str, tensors: Iterable[tuple[str, torch.Tensor]]
) -> Iterator[Stored]:
    """Yield a model's tensors; a tensor named after a type is stored as such, all others as
    float32. Experts come when all of a layer's have. Raises: ConfigError for an unknown name."""
    layout = families()[architecture].names
    names = WrittenNames(layout, model.num_layers)
    waiting: dict[str, dict[int, torch.Tensor]] = {}
    drafts: list[str] = []
    is_tied = bool(model.hf_config.get("tie_word_embeddings"))
    for full, tensor in tensors:
        module, _, leaf = full.rpartition(".")
        if full.endswith(_NOT_STORED) or (module == "lm_head" and is_tied):
            continue
        if names.is_draft(full):
            drafts.append(full)
            continue
        own = names.own(full)
        if own is not None:
            yield Stored(name=own, tensor=finite(full, tensor.float()).flatten())
            continue
        place = names.place(module)
        if place is None:
            raise ConfigError(
                f"{full} has no name in GGUF.",
                where=model.path,
                fix="choose a method that keeps names: int8, int4, fp8, gptq, awq.",
            )
        module, stem, number = place
        is_typed = leaf in QUANTIZED or leaf in FLOAT_DTYPES
        kind = leaf if leaf in QUANTIZED else ""
        name = f"{stem}.{'weight' if is_typed else leaf}"
        tensor = tensor if is_typed else finite(full, tensor.float())
        if layout.is_input_first and leaf == "weight" and ".c_" in module:
            tensor = tensor.t().contiguous()
        if number is None:
            yield Stored(
                name=name, tensor=_as_stored(model, layout, module, leaf, tensor), type=kind
            )
            continue
        experts = waiting.setdefault(name, {})
        experts[number] = tensor
        if len(experts) == num_experts(model):
            yield Stored(name=name, tensor=stacked(waiting.pop(name)), type=kind)
    if drafts:
        log.warning("left out: %s and %d more, of layers that draft.", drafts[0], len(drafts) - 1)
    if waiting:
        raise ConfigError(f"experts of {next(iter(waiting))} are missing.", where=model.path)


def stacked(experts: dict[int, torch.Tensor]) -> torch.Tensor:
    """Return all experts' matrices as one tensor."""
    return torch.stack([experts[number] for number in sorted(experts)])


def num_experts(model: ModelSpec) -> int:
    """Return the routed experts of a layer, 0 without any."""
    config = model.hf_config
    names = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
    return int(next((config[name] for name in names if config.get(name)), 0))


def finite(name: str, tensor: torch.Tensor) -> torch.Tensor:
    """Return a tensor. Raises: ConfigError if it has numbers that are not finite"""
    if not bool(tensor.isfinite().all()):
        raise ConfigError(
            "it holds numbers that are not finite.",
            where=name,
            fix="download the checkpoint again.",
        )
    return tensor


def _as_stored(
    model: ModelSpec, layout: FamilyNames, module: str, leaf: str, tensor: torch.Tensor
) -> torch.Tensor:
    """Return a tensor as converters change it: rows of heads turned, norms plus one."""
    last = module.rpartition(".")[2]
    if layout.turns_heads and last in ("q_proj", "k_proj"):
        heads = model.num_heads if last == "q_proj" else model.num_kv_heads
        return tensor.view(heads, 2, -1, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)
    if layout.adds_one and module.endswith("norm") and leaf == "weight":
        return tensor + 1
    return tensor.squeeze(0) if last == "shared_expert_gate" else tensor
