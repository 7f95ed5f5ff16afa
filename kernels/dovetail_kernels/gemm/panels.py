"""Weight layout for GPU products: the meaning of codes, how many are grouped, and their order.

Shape letters: N outputs, K inputs, H codes of a panel.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F

from dovetail_kernels.gemm.weight import Weight, narrow_bits

PLANES = {
    "int2": (2, 0),
    "int3": (2, 1),
    "int4": (4, 0),
    "int5": (4, 1),
    "int6": (4, 2),
    "e2m1": (4, 0),
    "table4": (4, 0),
}
"""Kinds of codes packed four to a word: bits of a code in the word, and separate bits."""
CODES = 4
KINDS = {
    "int8": "int8",
    "int8_float32": "int8",
    "int8_int8": "int8",
    **{f"int{bits}{end}": f"int{bits}" for bits in (2, 3, 4, 5, 6) for end in ("", "_int8")},
    "float8": "float8",
    "table4": "table4",
}
"""A format's kind of codes; formats that are missing here are plain floats."""
E2M1 = (0.0, 0.5, 1.0, 1.5, 2.0, 3.0, 4.0, 6.0)
PANELS = (128, 64, 32, 16)
"""The sizes that a dot product may have; 8-bit ones take 32 at least."""
TENSORS = ("values", "scales", "zeros", "offsets", "steps", "offset_steps", "outer", "table")
"""The possible tensors of a weight."""


def moved(weight: Weight, device: torch.device | str | None) -> Weight:
    """Return a weight with its tensors on a device."""
    there: dict[str, Any] = {
        name: None if (t := getattr(weight, name)) is None else t.to(device)
        for name in (*TENSORS, "points", "signs")
    }
    return replace(weight, **there)


def kind_of(weight: Weight) -> tuple[str, Weight]:
    """Return the kind of a weight's codes, and the weight: a multiple of e2m1's table becomes that
    table, and the factor a scale of the outputs."""
    kind = KINDS.get(weight.format, "float")
    if kind != "table4":
        return kind, weight
    assert weight.table is not None
    half = torch.tensor(E2M1)
    wanted = torch.cat([half, -half])
    table = weight.table.float().cpu()
    factor = float(table[7]) / 6
    if factor <= 0 or not torch.equal(table, wanted * factor):
        return kind, weight
    if factor == 1:
        return "e2m1", weight
    outer = weight.table.new_full((weight.shape[0],), factor)
    outer = outer if weight.outer is None else outer * weight.outer
    return "e2m1", replace(weight, table=wanted.to(outer.device), outer=outer)


def scaling_of(weight: Weight, *, is_whole: bool) -> str:
    """Return at which point the scales of groups are multiplied in."""
    if not is_whole and weight.group % min(PANELS):
        return "each"
    return "after" if weight.offsets is None else "inside"


def has_whole_zeros(weight: Weight) -> bool:
    """Return whether zero points are small integers. (Asks the device, once a weight.)"""
    if weight.zeros is None:
        return False
    zeros = weight.zeros.float()
    return bool(((zeros == zeros.round()) & (zeros >= 0) & (zeros <= 64)).all())


def paired(weight: Weight) -> torch.Tensor | None:
    """Return scales and offsets in a byte if both are whole numbers of four bits, as with 2-bit
    codes, else None. (Asks the device, once a weight.) Shapes: [N, groups] uint8"""
    scales, offsets = weight.scales, weight.offsets
    if narrow_bits(weight.format) != 2 or scales is None or offsets is None:
        return None
    if scales.dtype != torch.int8 or offsets.dtype != torch.int8:
        return None
    if bool(((torch.stack([scales, offsets]) & -16) != 0).any()):
        return None
    return (scales | (offsets << 4)).view(torch.uint8)


def panel_of(weight: Weight, kind: str, scaling: str, *, is_large: bool) -> int:
    """Return how many inputs of an output form one dot product: within a group, if that matters."""
    largest = PANELS[2] if kind in PLANES else PANELS[0] if is_large else PANELS[1]
    if scaling == "each":
        return min(largest, PANELS[2])  # each input's own scale takes registers
    if scaling == "none" or weight.scales is None or weight.scales.shape[1] == 1:
        return largest
    return next(p for p in PANELS if p <= largest and weight.group % p == 0)


def panels(weight: Weight, kind: str, panel: int) -> tuple[torch.Tensor, torch.Tensor | None]:
    """Return codes in panels, and their separate bits, if there are any.

    Words have four codes: inputs j, j + H, j + 2 H and j + 3 H, the first lowest. One separate bit
    of four codes makes half a byte: a byte has those of two panels, the even one lower.
    Shapes: [N, K] -> [panels, N, H], [panels or half of them, N, H]; floats unchanged
    """
    values = weight.values
    if kind == "float":
        return values.contiguous(), None
    if kind == "float8":
        values = values.view(torch.uint8)
    if kind not in PLANES:
        values = F.pad(values, (0, -values.shape[1] % panel))
        return values.unflatten(1, (-1, panel)).transpose(0, 1).contiguous(), None
    low, high = PLANES[kind]
    values = F.pad(values, (0, -values.shape[1] % (CODES * panel)))
    words = _words(values & ((1 << low) - 1), low, panel)
    if not high:
        return words, None
    apart = _words(values >> low, high, panel)
    if high == 1:
        apart = F.pad(apart, (0, 0, 0, 0, 0, len(apart) % 2))
        apart = apart[0::2] | (apart[1::2] << 4)
    return words, apart


def _words(values: torch.Tensor, bits: int, panel: int) -> torch.Tensor:
    """Return four codes of some bits in a word. Shapes: [N, K] -> [panels, N, H]"""
    quarters = values.unflatten(1, (-1, CODES, panel)).transpose(0, 1)
    dtype = torch.int16 if bits == 4 else torch.uint8
    words = quarters[:, :, 0].to(dtype)
    for number in range(1, CODES):
        words |= quarters[:, :, number].to(dtype) << (bits * number)
    return words.contiguous()


def codes_of(values: torch.Tensor, highs: torch.Tensor | None, kind: str) -> torch.Tensor:
    """Return codes in the inputs' order. Shapes: values and highs as of `panels`, of M outputs ->
    [M, panels * H * codes of a word]"""
    if kind not in PLANES:
        return values.transpose(0, 1).flatten(1)
    low, high = PLANES[kind]
    codes = _quarters(values, low)
    if highs is not None:
        if high == 1:
            highs = torch.stack([highs & 15, highs >> 4], dim=1).flatten(0, 1)[: len(values)]
        codes |= _quarters(highs, high) << low
    return codes.flatten(1)


def _quarters(words: torch.Tensor, bits: int) -> torch.Tensor:
    """Return the codes of words. Shapes: [panels, M, H] -> [M, panels, CODES, H] uint8"""
    mask = (1 << bits) - 1
    codes = [(words >> (bits * number)) & mask for number in range(CODES)]
    return torch.stack(codes, dim=2).transpose(0, 1).to(torch.uint8)


def turned(scales: torch.Tensor | None) -> torch.Tensor | None:
    """Return scales group by group. Shapes: [N, groups] -> [groups, N]"""
    if scales is None:
        return None
    if scales.dtype != torch.float8_e4m3fn:
        return scales.t().contiguous()
    return scales.view(torch.uint8).t().contiguous().view(scales.dtype)
