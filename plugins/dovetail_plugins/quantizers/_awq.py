"""The arithmetic of AWQ.

Errors of outputs are computed from sums of inputs: for a difference D of weights, the trace of D (x
x^T) D^T. Source: Lin et al., 2023 (https://arxiv.org/abs/2306.00978), sections 3.2 and 4. Shape
letters: O outputs, I inputs, G inputs per group.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dovetail.interfaces.quantizer import Block
from dovetail_plugins.quantizers._rounding import grouped, levels, meant, stored_steps

BITS = 4
TOP = (1 << BITS) - 1
GRID = 20
"""Exponents tried between 0 (no scaling) and 1 (by the inputs' magnitudes)."""
CUTS = tuple(1 - 0.05 * number for number in range(11))
"""Shares of a group's range that are tried."""

_GATE_UP = ("mlp.gate_proj", "mlp.up_proj")
SHARED: tuple[tuple[str, tuple[str, ...]], ...] = (
    ("input_layernorm", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
    ("input_layernorm", ("self_attn.qkv_proj",)),
    ("self_attn.v_proj", ("self_attn.o_proj",)),
    ("pre_feedforward_layernorm", _GATE_UP),
    ("post_attention_layernorm", _GATE_UP),
    ("post_attention_layernorm", ("mlp.gate_up_proj",)),
    ("self_attn_layer_norm", ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")),
    ("self_attn.v_proj", ("self_attn.out_proj",)),
    ("final_layer_norm", ("fc1",)),
    ("ln_1", ("attn.c_attn",)),
    ("ln_2", ("mlp.c_fc",)),
    ("input_layernorm", ("attention.query_key_value",)),
    ("post_attention_layernorm", ("mlp.dense_h_to_4h",)),
    ("input_layernorm", (*(f"self_attn.{word}_proj" for word in "qkv"), *_GATE_UP)),
)
"""Producer of inputs -> the layers that receive them, in the order of the block. A norm before
experts also feeds their router, which is not scaled: it fits no entry."""
GATE, UP, DOWN = "gate_proj", "up_proj", "down_proj"
"""Layers of a gated MLP, an expert's too: what `UP` makes is multiplied and goes into `DOWN`."""
NORM = "norm"
AROUND = ("pre_feedforward_layernorm", "post_feedforward_layernorm")
"""Norms of an MLP; if a block has these, the norm after attention is not the MLP's input."""


def scale_block(block: Block, group: int, *, adds_one: bool) -> None:
    """Scale the inputs of the block's matrices if that helps. Mutates: block

    `adds_one`: norms multiply by their weight plus one.
    """
    for giver, takers in (*SHARED, *_gated(block)):
        is_behind = any(f"{name}.weight" in block.tensors for name in AROUND)
        if (is_behind and giver == "post_attention_layernorm") or not _fits(
            block, giver, takers, group
        ):
            continue
        inputs = block.inputs[takers[0]]
        weights = [block.tensors[f"{name}.weight"] for name in takers]
        factors = best_factors(weights, inputs.gram, inputs.magnitude, group)
        if factors is not None:
            _apply(block, giver, takers, factors, adds_one=adds_one)


def _gated(block: Block) -> list[tuple[str, tuple[str, ...]]]:
    """Return the entries of the block's gated MLPs."""
    ends = [name.removesuffix(DOWN) for name in block.inputs if name.endswith(f".{DOWN}")]
    return [
        (f"{start}{UP}", (f"{start}{DOWN}",))
        for start in ends
        if f"{start}{GATE}.weight" in block.tensors
    ]


def _fits(block: Block, giver: str, takers: Sequence[str], group: int) -> bool:
    """Return whether these layers, and no others, receive the producer's output, input by input."""
    source = block.tensors.get(f"{giver}.weight")
    if source is None or any(name not in block.inputs for name in takers):
        return False
    shared = block.inputs[takers[0]]
    if {name for name, inputs in block.inputs.items() if inputs is shared} != set(takers):
        return False
    size = len(shared.magnitude)  # heads may share values: then the giver has fewer
    return len(source) == size and size % group == 0


def _apply(
    block: Block, giver: str, takers: Sequence[str], factors: torch.Tensor, *, adds_one: bool
) -> None:
    """Multiply weights and divide their input's producer. Mutates: block"""
    inputs = block.inputs[takers[0]].scaled(1 / factors)
    for name in takers:
        block.tensors[f"{name}.weight"] = block.tensors[f"{name}.weight"] * factors
        block.inputs[name] = inputs
    own = block.tensors[f"{giver}.weight"]
    if own.dim() == 1 and adds_one:
        block.tensors[f"{giver}.weight"] = (own + 1) / factors - 1
    else:
        block.tensors[f"{giver}.weight"] = own / (factors if own.dim() == 1 else factors[:, None])
    bias = block.tensors.get(f"{giver}.bias")
    if bias is not None:
        block.tensors[f"{giver}.bias"] = bias / factors


def best_factors(
    weights: Sequence[torch.Tensor], gram: torch.Tensor, magnitude: torch.Tensor, group: int
) -> torch.Tensor | None:
    """Return the factors with the smallest output error, None if no scaling is best.

    Shapes: weights [O, I] each, gram [I, I], magnitude [I] -> [I]
    """
    best, min_error = None, _error(weights, gram, group, torch.ones_like(magnitude))
    for number in range(1, GRID + 1):
        factors = magnitude.clamp(min=1e-4).pow(number / GRID)
        factors = factors / (factors.max() * factors.min()).sqrt()
        error = _error(weights, gram, group, factors)
        if error < min_error:
            best, min_error = factors, error
    return best


def _error(
    weights: Sequence[torch.Tensor], gram: torch.Tensor, group: int, factors: torch.Tensor
) -> float:
    """Return the error of all outputs together, with inputs scaled."""
    total = 0.0
    for weight in weights:
        scaled = weight * factors
        steps, zeros = full_ranges(scaled, group)
        values = levels(scaled, steps, bits=BITS, zeros=zeros)
        wrong = meant(values, steps, bits=BITS, zeros=zeros) / factors - weight
        total += float(((wrong @ gram) * wrong).sum())
    return total


def full_ranges(weight: torch.Tensor, group: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Return steps and levels of 0 that reach from the least to the largest weight of a group.

    Shapes: weight [O, I] -> [O, I / G] float16, [O, I / G] uint8
    """
    parts = grouped(weight, group)
    return _ranges(parts.amin(-1), parts.amax(-1))


def _ranges(low: torch.Tensor, high: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return steps and levels of 0; 0 is always one of the levels."""
    low, high = low.clamp(max=0), high.clamp(min=0)
    steps = stored_steps((high - low) / TOP, torch.float16)
    return steps, (-low / steps.float()).round().clamp(0, TOP).to(torch.uint8)


def best_ranges(
    weight: torch.Tensor, gram: torch.Tensor, group: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return steps and zero levels of ranges that are clipped if outputs gain by it. Groups are
    handled one by one. Shapes: weight [O, I], gram [I, I] -> as full_ranges"""
    ranges = [
        _best_range(part, gram[place : place + group, place : place + group])
        for place, part in zip(
            range(0, weight.shape[1], group), weight.split(group, dim=1), strict=True
        )
    ]
    return torch.cat([one[0] for one in ranges], 1), torch.cat([one[1] for one in ranges], 1)


def _best_range(weight: torch.Tensor, gram: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """Return one group's steps and levels of 0. Shapes: weight [O, G] -> [O, 1] each"""
    low, high = weight.amin(-1, keepdim=True), weight.amax(-1, keepdim=True)
    best_steps, best_zeros = _ranges(low, high)
    min_error = torch.full((len(weight), 1), torch.inf)
    for share in CUTS:
        steps, zeros = _ranges(low * share, high * share)
        values = levels(weight, steps, bits=BITS, zeros=zeros)
        wrong = meant(values, steps, bits=BITS, zeros=zeros) - weight
        error = ((wrong @ gram) * wrong).sum(-1, keepdim=True)
        is_better = error < min_error
        best_steps = torch.where(is_better, steps, best_steps)
        best_zeros = torch.where(is_better, zeros, best_zeros)
        min_error = torch.where(is_better, error, min_error)
    return best_steps, best_zeros
