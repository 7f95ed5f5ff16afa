"""Tensors of a checkpoint under GGUF's names and shapes: the inverse of `reading/tensors.py`."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator

import torch

from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec
from dovetail_plugins.gguf.blocks.types import QUANTIZED
from dovetail_plugins.gguf.families import families
from dovetail_plugins.gguf.families.family import FamilyNames
from dovetail_plugins.gguf.writing.write import Stored

_EXPERT = re.compile(r"(.+\.experts)\.(\d+)\.(.+)")
_LETTERS = {"w1": "gate_proj", "w3": "up_proj", "w2": "down_proj"}
"""Mixtral's own names of an expert's matrices -> the other families' names."""
_NOT_STORED = (".rotary_emb.inv_freq", ".attn.bias", ".attn.masked_bias")
_LEFT_OUT = "transformer."
"""A name prefix that some checkpoints of GPT-2 omit."""


def renamed(
    model: ModelSpec, architecture: str, tensors: Iterable[tuple[str, torch.Tensor]]
) -> Iterator[Stored]:
    """Yield a model's tensors; a tensor named after a block type is stored as such, all others as
    float32. Experts come when all of a layer's have. Raises: ConfigError for an unknown name."""
    layout = families()[architecture].names
    names = _names(layout, model.num_layers)
    waiting: dict[str, dict[int, torch.Tensor]] = {}
    is_tied = bool(model.hf_config.get("tie_word_embeddings"))
    for full, tensor in tensors:
        module, _, leaf = full.rpartition(".")
        if full.endswith(_NOT_STORED) or (module == "lm_head" and is_tied):
            continue
        kind = leaf if leaf in QUANTIZED else ""
        module, number = _expert(module)
        module = module if module in names else f"{_LEFT_OUT}{module}"
        if module not in names:
            raise ConfigError(
                f"{full} has no name in GGUF.",
                where=model.path,
                fix="choose a method that keeps names: int8, int4, fp8, gptq, awq.",
            )
        name = f"{names[module]}.{'weight' if kind else leaf}"
        tensor = tensor if kind else tensor.float()
        if layout.is_input_first and leaf == "weight" and ".c_" in module:
            tensor = tensor.t().contiguous()
        if number is None:
            yield Stored(name=name, tensor=_as_stored(model, layout, module, tensor), type=kind)
            continue
        experts = waiting.setdefault(name, {})
        experts[number] = tensor
        if len(experts) == _num_experts(model):
            stacked = torch.stack([experts[n] for n in sorted(waiting.pop(name))])
            yield Stored(name=name, tensor=stacked, type=kind)
    if waiting:
        raise ConfigError(f"experts of {next(iter(waiting))} are missing.", where=model.path)


def _names(layout: FamilyNames, num_layers: int) -> dict[str, str]:
    """Return the checkpoint's module -> GGUF's stem."""
    found = {theirs: ours for ours, theirs in layout.trunk.items()}
    for number in range(num_layers):
        for ours, theirs in layout.block.items():
            found[f"{layout.blocks}.{number}.{theirs}"] = f"blk.{number}.{ours}"
    return found


def _expert(module: str) -> tuple[str, int | None]:
    """Return the name of the module for all experts, and the number of this one."""
    match = _EXPERT.fullmatch(module)
    if match is None:
        return module, None
    return f"{match[1]}.{_LETTERS.get(match[3], match[3])}", int(match[2])


def _num_experts(model: ModelSpec) -> int:
    config = model.hf_config
    return int(config.get("num_local_experts") or config.get("num_experts") or 0)


def _as_stored(
    model: ModelSpec, layout: FamilyNames, module: str, tensor: torch.Tensor
) -> torch.Tensor:
    """Return a tensor as converters change it: rows of heads turned, norms plus one."""
    last = module.rpartition(".")[2]
    if layout.turns_heads and last in ("q_proj", "k_proj"):
        heads = model.num_heads if last == "q_proj" else model.num_kv_heads
        return tensor.view(heads, 2, -1, *tensor.shape[1:]).transpose(1, 2).reshape(tensor.shape)
    if layout.adds_one and module.endswith("norm"):
        return tensor + 1
    return tensor.squeeze(0) if last == "shared_expert_gate" else tensor
