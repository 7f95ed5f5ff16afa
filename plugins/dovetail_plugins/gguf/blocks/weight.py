"""Rows of GGUF blocks as the matrix that kernels multiply: integers in groups, in up to 8 bits.

The matrix is exact: steps stay float16 (or another type that holds them), the codes of the K and IQ
types stay codes, and values take as many bits as in the file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch

from dovetail_kernels.gemm.weight import Fields, Weight, integer_format
from dovetail_plugins.gguf.blocks.integers import LAYOUTS
from dovetail_plugins.gguf.blocks.types import BY_NAME
from dovetail_plugins.gguf.blocks.vectors import VECTORS, points, vectors

BITS = {
    "Q2_K": 2,
    "TQ2_0": 2,
    "Q3_K": 3,
    "Q4_0": 4,
    "Q4_1": 4,
    "Q4_K": 4,
    "Q5_0": 5,
    "Q5_1": 5,
    "Q5_K": 5,
    "Q6_K": 6,
    "Q8_0": 8,
}
"""The bits of a value, for types with consecutive levels."""
EIGHTHS = 8
TRITS = "TQ1_0"
PART_VALUES = 1 << 21
"""Values that are unpacked at a time."""

Tensors = Mapping[str, torch.Tensor]


def weight_of(type_name: str, rows: torch.Tensor) -> Weight:
    """Return the matrix of a type. Shapes: rows [N, bytes] uint8 -> [N, K]"""
    fields: dict[str, Any] = dict(_unpacked(type_name, rows))
    inputs = rows.shape[1] // BY_NAME[type_name].block_bytes * BY_NAME[type_name].values
    group = inputs // fields["scales"].shape[1]
    names = ("steps", "offset_steps") if "steps" in fields else ("scales", "offsets")
    fields |= _narrow({name: fields[name] for name in names if name in fields})
    run = inputs // fields["steps"].shape[1] if "steps" in fields else 0
    if type_name in VECTORS:
        of_type = points(type_name).unsqueeze(0)
        fields |= _whole_steps(fields["steps"], len(rows))
        return Weight(format="vectors", points=of_type, group=group, run=run, **fields)
    if type_name == TRITS:
        return Weight(format="trits", group=group, **fields)
    levels = LAYOUTS[type_name].levels
    if not levels:
        format = integer_format(BITS[type_name], "float")
        return Weight(format=format, group=group, run=run, **fields)
    table = torch.zeros(16)
    table[: len(levels)] = torch.tensor(levels, dtype=torch.float32)
    if type_name == "NVFP4":  # the file's scales are e4m3, halved because the levels are doubled
        table = table / 2
        fields["scales"] = (fields["scales"].float() * 2).to(torch.float8_e4m3fn)
    return Weight(format="table4", group=group, run=run, table=table, **fields)


def _unpacked(type_name: str, rows: torch.Tensor) -> dict[str, Any]:
    """Return the tensors of the matrix, some rows at a time where torch unpacks them."""
    layout = LAYOUTS.get(type_name)
    if layout is not None and layout.is_native:
        if _added(type_name):
            return _part(type_name, rows)
        fields = Fields(layout.planes, BY_NAME[type_name].block_bytes)
        return _scales(type_name, rows) | {"values": rows, "fields": fields}
    known = BY_NAME[type_name]
    inputs = rows.shape[1] // known.block_bytes * known.values
    some = max(1, PART_VALUES // inputs)
    tensors: dict[str, torch.Tensor] = {}
    for start in range(0, len(rows), some):
        part = rows[start : start + some]
        for name, tensor in _part(type_name, part).items():
            if name not in tensors:
                tensors[name] = tensor.new_empty(len(rows), tensor.shape[1])
            tensors[name][start : start + len(part)] = tensor
    return tensors


def _part(type_name: str, rows: torch.Tensor) -> dict[str, torch.Tensor]:
    """Return the tensors of some rows."""
    blocks = rows.reshape(-1, BY_NAME[type_name].block_bytes)
    if type_name in VECTORS:
        return _vector_part(type_name, blocks, len(rows))
    values = LAYOUTS[type_name].places(blocks)
    if BITS.get(type_name) == 8:
        values = values.view(torch.int8)
    elif added := _added(type_name):
        values = values + added
    scales = {name: tensor.contiguous() for name, tensor in _scales(type_name, rows).items()}
    return scales | {"values": values.view(len(rows), -1)}


def _added(type_name: str) -> int:
    """Return what is added to stored values, whose zero point is then the usual one."""
    bits, center = BITS.get(type_name, 0), LAYOUTS[type_name].center
    return (1 << (bits - 1)) - center if bits and center else 0


def _scales(type_name: str, rows: torch.Tensor) -> dict[str, Any]:
    """Return the scales of some rows. Without codes the steps are the groups' scales."""
    scales = LAYOUTS[type_name].scales(rows.reshape(-1, BY_NAME[type_name].block_bytes))
    if "codes" in scales:
        names = {"codes": "scales", "steps": "steps", "offset_codes": "offsets",
                 "offset_steps": "offset_steps"}  # fmt: skip
    else:
        names = {"steps": "scales", "offset_steps": "offsets"}
    return {names[name]: tensor.reshape(len(rows), -1) for name, tensor in scales.items()}


def _vector_part(type_name: str, blocks: torch.Tensor, count: int) -> dict[str, torch.Tensor]:
    """Return the tensors of `count` rows of vectors."""
    converted = vectors(type_name, blocks)
    found = {
        "values": converted.index,
        "scales": converted.codes,
        "steps": converted.steps,
        "signs": converted.signs,
    }
    return {name: t.reshape(count, -1) for name, t in found.items() if t is not None}


def _whole_steps(steps: torch.Tensor, outputs: int) -> dict[str, torch.Tensor]:
    """Return steps in 16 bits: the file's fit, but an eighth of a small one does not."""
    wide = steps * EIGHTHS
    whole = wide.half()
    if steps.dtype != torch.float32 or not torch.equal(whole.float(), wide):
        return {"steps": steps}
    return {"steps": whole, "outer": torch.full((outputs,), 1 / EIGHTHS)}


def _narrow(tensors: Tensors) -> dict[str, torch.Tensor]:
    """Return floats in 16 bits if all of them are exact in one type."""
    if all(tensor.dtype == torch.float16 for tensor in tensors.values()):
        return dict(tensors)
    for dtype in (torch.float16, torch.bfloat16):
        narrowed = {name: tensor.to(dtype) for name, tensor in tensors.items()}
        if all(torch.equal(narrowed[name].float(), tensors[name]) for name in tensors):
            return narrowed
    return dict(tensors)
