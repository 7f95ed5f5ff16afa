"""group_fit on the native CPU library."""

from __future__ import annotations

import ctypes
from functools import cache

import torch

from dovetail_kernels.cpu.blocks import large_empty
from dovetail_kernels.cpu.implementation import native_implementation
from dovetail_kernels.cpu.library import Kernel, needed_library
from dovetail_kernels.group_fit.reference import Fit, ends_of

_pointer, _int64, _int32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
FORMATS = {torch.float32: 0, torch.bfloat16: 1, torch.float16: 2}
"""The formats of gemm/args.h."""


class GroupFitArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [
        ("weight", _pointer),
        ("importances", _pointer),
        ("ends", ctypes.POINTER(ctypes.c_float)),
        ("values", _pointer),
        ("scales", _pointer),
        ("offsets", _pointer),
        ("steps", _pointer),
        ("offset_steps", _pointer),
        ("outputs", _int64),
        ("inputs", _int64),
        ("group", _int64),
        ("run", _int64),
        ("num_ends", _int64),
        ("format", _int32),
        ("bits", _int32),
    ]


@cache
def _kernel() -> Kernel:
    return needed_library().kernel("group_fit", GroupFitArgs)


def fit(
    weight: torch.Tensor,
    importances: torch.Tensor | None,
    *,
    bits: int,
    group: int,
    run: int,
    has_offsets: bool,
) -> Fit:
    """Return values, codes and steps (see the op). Shapes: weight [N, K], importances [K]

    Raises: MemoryError
    """
    weight = weight.contiguous()
    outputs, inputs = weight.shape
    groups = -(-inputs // group)
    runs = -(-groups // run)
    ends = ends_of(bits, has_offsets=has_offsets)
    weighs = None if importances is None else importances.float().contiguous()
    values = large_empty(outputs * inputs, needed_library()).view(outputs, inputs)
    scales = torch.empty(outputs, groups, dtype=torch.int8)
    steps = torch.empty(outputs, runs)
    offsets = torch.empty_like(scales) if has_offsets else None
    offset_steps = torch.empty_like(steps) if has_offsets else None
    args = GroupFitArgs(
        weight=weight.data_ptr(),
        importances=None if weighs is None else weighs.data_ptr(),
        ends=(ctypes.c_float * len(ends))(*ends),
        values=values.data_ptr(),
        scales=scales.data_ptr(),
        offsets=None if offsets is None else offsets.data_ptr(),
        steps=steps.data_ptr(),
        offset_steps=None if offset_steps is None else offset_steps.data_ptr(),
        outputs=outputs,
        inputs=inputs,
        group=group,
        run=run,
        num_ends=len(ends),
        format=FORMATS[weight.dtype],
        bits=bits,
    )
    if _kernel()(ctypes.byref(args)):
        raise MemoryError(f"no memory for rows of {inputs} weights")
    return values, scales, steps, offsets, offset_steps


NATIVE = native_implementation(fit, dtypes=tuple(FORMATS))
