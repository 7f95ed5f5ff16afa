"""Weights in the format that products read, which depends on the type of activations.

A quantization method gives the matrix, in a format with float activations or, for integers with a
scale per output, "int8". The type of activations follows from it, from the option and from the
device (`rounding.taken`), and is decided here. Shape letters: N outputs, K inputs, G inputs that
share a scale.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from dovetail.interfaces.quantization import LinearSpec
from dovetail.layers.dtypes import dtype_of
from dovetail_kernels.gemm.matrix import multiplies_pairs, runs_on_gpu
from dovetail_kernels.gemm.weight import Weight, is_trits, narrow_bits, rounds_to_int8
from dovetail_plugins.layers.stored.rounding import BFLOAT16, FLOAT, FLOAT8, INT8, TOKEN, taken

INT8_END = "_int8"
INT8_STEP = 16
"""Groups of weights that meet int8 activations are multiples of it."""
STEP = 8
"""Groups of all weights are."""
_WIDE, _OUTPUT = "int8_float32", "int8"
"""8 bits in groups with float activations; 8 bits with a scale per output and int8 activations."""


def multiplied(weight: Weight, activations: str, spec: LinearSpec) -> tuple[Weight, str]:
    """Return a layer's weight in the format of its product, and the type of its activations (see
    `rounding.TAKES`). `activations`: the option `activations`."""
    becomes = taken(
        takes_of(weight),
        activations,
        is_cpu=is_cpu(spec.device, dtype_of(spec.dtype)),
        is_bfloat16=spec.weight_dtype == "bfloat16"
        and multiplies_pairs(in_groups=weight.format != "bfloat16"),
    )
    if becomes in (TOKEN, INT8):
        return with_integers(weight), becomes
    weight = with_floats(weight)
    if becomes == BFLOAT16 and weight.format == "bfloat16":
        weight = replace(weight, format="bfloat16_bfloat16")
    return weight, becomes


def is_cpu(device: str, dtype: torch.dtype) -> bool:
    """Return whether products run on the CPU; False if a GPU's kernels are interpreted."""
    return torch.device(device).type == "cpu" and not runs_on_gpu(device, dtype)


def takes_of(weight: Weight) -> str:
    """Return the possible type of a matrix's activations, one of `rounding.TAKES`."""
    if weight.format == _OUTPUT or _has_integers(weight):
        return TOKEN if weight.has_token_scales else INT8
    if weight.has_float8_activations:
        return FLOAT8
    is_exact = weight.format in ("float32", "float16") or weight.points is not None
    return FLOAT if is_exact else BFLOAT16


def with_integers(weight: Weight) -> Weight:
    """Return a weight of integers in the format with int8 activations."""
    if rounds_to_int8(weight.format):
        return weight
    if weight.format != _WIDE:
        return replace(weight, format=weight.format + INT8_END)
    is_plain = weight.zeros is None and weight.offsets is None and weight.steps is None
    if is_plain and weight.scales is not None and weight.scales.shape[1] == 1:
        return replace(weight, format=_OUTPUT, scales=weight.scales[:, 0].float(), group=0)
    return replace(weight, format=_OUTPUT + INT8_END)


def with_floats(weight: Weight) -> Weight:
    """Return a weight in the format with float activations."""
    weight = replace(weight, has_token_scales=False)
    if weight.format == _OUTPUT:
        assert weight.scales is not None
        group = -(-weight.shape[1] // STEP) * STEP
        return replace(weight, format=_WIDE, scales=weight.scales.unsqueeze(1), group=group)
    if not weight.format.endswith(INT8_END):
        return weight
    name = weight.format.removesuffix(INT8_END)
    return replace(weight, format=_WIDE if name == _OUTPUT else name)


def _has_integers(weight: Weight) -> bool:
    """Return whether kernels have the weight's format with int8 activations too."""
    if weight.points is not None:
        return not weight.points.is_floating_point()
    name = weight.format.removesuffix(INT8_END)
    is_integer = name in (_WIDE, _OUTPUT) or narrow_bits(name) > 0 or is_trits(name)
    return is_integer and weight.group % INT8_STEP == 0
