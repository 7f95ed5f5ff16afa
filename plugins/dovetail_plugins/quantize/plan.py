"""QuantizePlan: which tensors of a checkpoint are quantized, and the group size.

It is decided by names and shapes, before any weight is read.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from dovetail.errors import ConfigError
from dovetail.interfaces.quantizer import Quantizer

WEIGHT = ".weight"
HEAD = "lm_head"
EXPERTS = ".experts."
ROUTERS = ("gate", "shared_expert_gate", "router")
"""Names of layers that choose experts. They are tiny, and errors in them select other experts."""
TOKEN_TABLES = ("embed_tokens", "wte")
TABLES = (*TOKEN_TABLES, HEAD)
FILE_TABLES = ("token_embd", "output")
"""GGUF's whole names of the token table and the head."""
TOWERS = ("visual", "vision_tower", "vision_model", "audio_tower", "multi_modal_projector")
USUAL = "tables and heads stay"
GROUPS = (128, 64, 32)
"""Inputs per scale, preferred first; every reader of grouped layouts supports them."""

Shapes = Mapping[str, tuple[int, ...]]
"""Tensor name -> its shape."""


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantizePlan:
    """`quantized` are layer names; `whole` maps the matrices that stay unquantized to the
    reasons."""

    quantized: frozenset[str]
    whole: Mapping[str, str]

    def layer_of(self, tensor: str) -> str | None:
        """Return the layer of a tensor, if the tensor is its matrix and to be quantized."""
        name = tensor.removesuffix(WEIGHT)
        return name if name != tensor and name in self.quantized else None


def plan_of(shapes: Shapes, quantizer: Quantizer) -> QuantizePlan:
    """Return what happens to each matrix. Raises: ConfigError if none can be quantized"""
    takes_tables = "tables" in quantizer.capabilities
    quantized, whole = [], {HEAD: USUAL}
    for tensor, shape in shapes.items():
        if len(shape) == 3 and EXPERTS in tensor:
            whole[tensor.removesuffix(WEIGHT)] = "experts in one tensor are not taken apart"
        if not is_matrix(tensor, shape):
            continue
        name = tensor.removesuffix(WEIGHT)
        reason = why_kept(name, takes_tables=takes_tables)
        reason = reason or quantizer.why_whole(name, (shape[0], shape[1]))
        if reason:
            whole[name] = reason
        else:
            quantized.append(name)
    if not quantized:
        reasons = "; ".join(sorted({reason for reason in whole.values() if reason != USUAL}))
        raise ConfigError(
            f"no matrix can be quantized{f': {reasons}' if reasons else ''}.",
            where="--method",
            fix="choose another method or --group.",
        )
    return QuantizePlan(quantized=frozenset(quantized), whole=whole)


def is_matrix(tensor: str, shape: tuple[int, ...]) -> bool:
    """Return whether a tensor is the matrix of a linear layer, a token table or a head."""
    words = tensor.split(".")
    if len(shape) != 2 or words[-1] != "weight" or any("norm" in word for word in words):
        return False
    is_table = words[-2] in TABLES or tensor.removesuffix(WEIGHT) in FILE_TABLES
    return is_table or any(word.isdecimal() for word in words)


def why_kept(name: str, *, takes_tables: bool) -> str:
    """Return why a matrix stays unquantized in every layout; empty if it does not."""
    words = name.split(".")
    last = words[-1]
    if last in ROUTERS:
        return "routers stay"
    if any(word in TOWERS for word in words):
        return "parts that see or hear stay"
    return USUAL if last in TABLES and not takes_tables else ""


def group_of(requested: int | None, shapes: Shapes) -> int:
    """Return how many inputs share a scale: as requested, or the largest number that fits all.

    Raises: ConfigError if it does not divide the inputs of some layer.
    """
    wide = {
        name: shape[1]
        for name, shape in shapes.items()
        if is_matrix(name, shape) and not why_kept(name.removesuffix(WEIGHT), takes_tables=False)
    }
    if requested is None:
        return next((g for g in GROUPS if not _unfit(wide, g)), GROUPS[-1])
    unfit = _unfit(wide, requested) if requested > 0 else list(wide)
    if unfit:
        fitting = [str(g) for g in GROUPS if not _unfit(wide, g)]
        raise ConfigError(
            f"{unfit[0]} has {wide[unfit[0]]} inputs, which is not a multiple of {requested}.",
            where="--group",
            fix=f"use {' or '.join(fitting)}." if fitting else "leave it out.",
        )
    return requested


def _unfit(sizes: Mapping[str, int], group: int) -> list[str]:
    return [name for name, size in sizes.items() if size % group]


def block_name(tensor: str) -> str:
    """Return the name under which a tensor is reported: up to its first number, or its layer."""
    words = tensor.split(".")
    numbers = [place for place, word in enumerate(words) if word.isdecimal()]
    return ".".join(words[: numbers[0] + 1]) if numbers else tensor.removesuffix(WEIGHT)


def blocks_of(names: Iterable[str]) -> list[str]:
    """Return the blocks of the layers, in order of first appearance."""
    return list(dict.fromkeys(map(block_name, names)))
