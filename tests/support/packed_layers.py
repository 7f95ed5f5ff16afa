"""Matrices in GPTQ's and AWQ's layouts, groups of 32 inputs, and what is meant by them. Shape
letters: O outputs, I inputs."""

from __future__ import annotations

import torch

GROUP = 32
PLACES = [0, 4, 1, 5, 2, 6, 3, 7]
"""Where AWQ has the values of a word."""
Tensors = dict[str, torch.Tensor]


def rounded(weight: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return values [O, I], scales and zero points [O, I / 32] of a 4-bit matrix."""
    runs = weight.float().unflatten(1, (-1, GROUP))
    low, high = runs.amin(-1).clamp(max=0), runs.amax(-1).clamp(min=0)
    scales = ((high - low) / 15).half().float()
    zeros = (-low / scales).round().clamp(1, 15)
    values = (runs / scales.unsqueeze(-1) + zeros.unsqueeze(-1)).round().clamp(0, 15)
    return values.flatten(1).int(), scales, zeros.int()


def words(values: torch.Tensor, places: list[int] | range = range(8)) -> torch.Tensor:
    """Return 4-bit values [..., n] as int32 words [..., n / 8]."""
    whole = (values.long().unflatten(-1, (-1, 8)) << torch.tensor(list(places)) * 4).sum(-1)
    return (whole - (whole >> 31 << 32)).to(torch.int32)


def four_bits(weight: torch.Tensor) -> torch.Tensor:
    values, scales, zeros = rounded(weight)
    return (
        (values.unflatten(1, (-1, GROUP)) - zeros.unsqueeze(-1)) * scales.unsqueeze(-1)
    ).flatten(1)


def eight_bit_gptq(weight: torch.Tensor) -> Tensors:
    """Return a matrix in 8 bits, all inputs of a group of 32 with one scale, zero points 128."""
    runs = weight.float().unflatten(1, (-1, GROUP))
    scales = (runs.abs().amax(-1) / 127).half().float()
    values = ((runs / scales.unsqueeze(-1)).round().clamp(-127, 127) + 128).flatten(1).long()
    shifts = torch.arange(4) * 8

    def packed(numbers: torch.Tensor) -> torch.Tensor:
        whole = (numbers.unflatten(-1, (-1, 4)) << shifts).sum(-1)
        return (whole - (whole >> 31 << 32)).to(torch.int32)

    zeros = torch.full(scales.T.shape, 127)
    place = torch.arange(weight.shape[1], dtype=torch.int32) // GROUP
    return {"qweight": packed(values).T, "qzeros": packed(zeros), "scales": scales.T.half(),
            "g_idx": place}  # fmt: skip


def eight_bit_matrix(weight: torch.Tensor) -> torch.Tensor:
    runs = weight.float().unflatten(1, (-1, GROUP))
    scales = (runs.abs().amax(-1) / 127).half().float().unsqueeze(-1)
    return ((runs / scales).round().clamp(-127, 127) * scales).flatten(1)


def as_gptq(weight: torch.Tensor) -> Tensors:
    values, scales, zeros = rounded(weight)
    place = torch.arange(weight.shape[1], dtype=torch.int32) // GROUP
    return {"qweight": words(values).T, "qzeros": words(zeros.T - 1), "scales": scales.T.half(),
            "g_idx": place}  # fmt: skip


def as_awq(weight: torch.Tensor) -> Tensors:
    values, scales, zeros = rounded(weight)
    return {"qweight": words(values.T, PLACES), "qzeros": words(zeros.T, PLACES),
            "scales": scales.T.half()}  # fmt: skip
