"""Small floats of checkpoints as weights that kernels multiply: e4m3, e5m2, and e2m1 in blocks.

A scale is multiplied: value * scale. A checkpoint's activation scales are ignored: if activations
become e4m3, each row has its own scale, which is as exact or more. Source: Micikevicius et al., FP8
Formats for Deep Learning, 2022 (e4m3, e5m2); the OCP Microscaling Formats specification 1.0, 2023
(e2m1, e8m0). Shape letters: N outputs, K inputs.
"""

from __future__ import annotations

import torch

from dovetail_kernels.gemm.weight import Weight

E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
"""Codes 0 to 7; 8 to 15 are the same, negative."""
STEP = 8
"""Groups of the kernels' formats are multiples of it."""
DOT_STEP = 32
"""The least inputs of a product of two 8-bit floats."""


def e2m1_table() -> torch.Tensor:
    """Return the values of the sixteen codes. Shapes: -> [16] float32"""
    half = torch.tensor(E2M1)
    return torch.cat([half, -half])


def float8_weight(
    values: torch.Tensor,
    scales: torch.Tensor,
    block: tuple[int, int] | None = None,
    *,
    has_float8_activations: bool = False,
) -> Weight:
    """Return an e4m3 matrix unchanged; an e5m2 one, which no kernel reads, in bfloat16.

    `block`: outputs and inputs that share a scale; without it `scales` holds one, or one an output.
    Shapes: values [N, K], scales [] | [1] | [N] | [N, 1] | [N / block, K / block rounded up]
    """
    outputs, inputs = values.shape
    if block is None:
        spread, group = scales.float().reshape(-1, 1).expand(outputs, 1), _padded(inputs)
    else:
        spread, group = scales.float().repeat_interleave(block[0], dim=0)[:outputs], block[1]
    if block is not None and spread.shape[1] == 1:
        group = _padded(inputs)
    groups = spread.shape[1]
    if values.dtype == torch.float8_e4m3fn and group % STEP == 0:
        return Weight(
            format="float8",
            values=values,
            scales=spread.contiguous(),
            group=group,
            has_float8_activations=has_float8_activations
            and (groups == 1 or group % DOT_STEP == 0),
        )
    wide = torch.empty(values.shape, dtype=torch.bfloat16)
    for row in range(outputs):
        wide[row] = values[row].float() * spread[row].repeat_interleave(group)[:inputs]
    return Weight(format="bfloat16", values=wide)


def _padded(inputs: int) -> int:
    return -(-inputs // STEP) * STEP


def e2m1_weight(
    packed: torch.Tensor, scales: torch.Tensor, outer: torch.Tensor | None = None
) -> Weight:
    """Return a matrix of 4-bit floats in blocks of inputs; the first of two is in the low bits.

    `scales` in e4m3, e8m0 (uint8) or another float type; `outer` multiplies all of them.
    Shapes: packed [N, K / 2] uint8, scales [N, K / block], outer [] | [1] | [N] | [N, 1]
    """
    values = nibbles(packed)
    scales = e8m0(scales) if scales.dtype == torch.uint8 else scales
    return Weight(
        format="table4",
        values=values,
        scales=scales.contiguous(),
        table=e2m1_table(),
        outer=None if outer is None else outer.float().reshape(-1).expand(len(values)).contiguous(),
        group=values.shape[1] // scales.shape[1],
    )


def nibbles(packed: torch.Tensor, *, is_high_first: bool = False) -> torch.Tensor:
    """Return the two 4-bit codes of every byte, the low bits' first by default.

    Shapes: packed [..., n] uint8 -> [..., 2 n] uint8
    """
    pair = (packed >> 4, packed & 15) if is_high_first else (packed & 15, packed >> 4)
    return torch.stack(pair, dim=-1).flatten(-2)


def e8m0(exponents: torch.Tensor) -> torch.Tensor:
    """Return 2 ** (exponent - 127), which bfloat16 holds exactly; 255 is NaN. Shapes: as given"""
    bits = exponents.to(torch.int16) << 7
    bits[exponents == 0] = 0x40  # 2 ** -127 is below the normal numbers
    bits[exponents == 255] = 0x7FC0
    return bits.view(torch.bfloat16)


def half_if_exact(*tensors: torch.Tensor) -> tuple[torch.Tensor, ...]:
    """Return float tensors in a 16-bit type that is exact for all of them, or in float32."""
    for dtype in (torch.float16, torch.bfloat16):
        narrow = tuple(t.to(dtype) for t in tensors)
        if all(bool((n.float() == t.float()).all()) for n, t in zip(narrow, tensors, strict=True)):
            return narrow
    return tuple(t.float() for t in tensors)
