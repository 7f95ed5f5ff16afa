"""Storage of quantized layers in memory, derived from their tensors' headers. Imports no torch.

Mirrors `_grouped.grouped_weight`, `_float_formats` and the packed formats of the kernels; tests
compare it with the buffers of loaded models. Ignored: whether zero points turn out to be symmetric,
and scales to fit into 16 bits. Shape letters: O outputs, I inputs.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

from dovetail.interfaces.data.headers import StorageEstimate, StoredLayer, TensorHeader
from dovetail_plugins.layers.stored.rounding import BFLOAT16, FLOAT, INT8
from dovetail_plugins.quantization._widths import width_of

WIDE = ("float32", "float64")
"""Types of scales that do not fit into 16 bits."""
STEP, INT8_STEP, FLOAT8_STEP = 8, 16, 32
"""Groups of the kernels' formats are multiples of the first; of those that meet activations in int8
or in 8-bit floats, of the others."""
POINTS_STEP = 32
"""Groups of the kernels' formats of vectors are multiples of it."""
PAIR_BITS = 12
"""Of two 4-bit values and their places among four inputs."""
TABLE_BYTES = 64
"""Of what sixteen codes mean, in float32."""


def integers_estimate(
    outputs: int,
    inputs: int,
    *,
    bits: int,
    scales: TensorHeader,
    has_zeros: bool,
    packs: bool,
    group: int = 0,
    takes: str = INT8,
) -> StorageEstimate:
    """Return the estimate of integers in groups. `group` 0: as many groups as there are scales.
    `takes` is passed if groups fit int8 activations.

    Without their own zero points, values of widths unknown to kernels still need some: half of
    their range is not half of the kernels'.
    """
    count, told_outputs = outputs * inputs, outputs if outputs > 1 else 0
    groups = -(-inputs // group) if group else max(1, scales.num_values // outputs)
    size = group or inputs // groups
    wide = width_of(bits, size)
    has_zeros = has_zeros or wide != bits
    if wide == 8 and groups == 1 and not has_zeros:
        return bytes_estimate(count, outputs, takes=takes)
    if size % STEP:
        return replace(plain_estimate(count, "float16"), outputs=told_outputs)
    scale_bytes = 4 if scales.dtype in WIDE else 2
    factors = outputs * groups * scale_bytes * (2 if has_zeros else 1)
    return StorageEstimate(
        num_values=count,
        format=f"int{wide}, groups of {size}",
        num_bytes=value_bytes(count, wide, packs=packs) + factors,
        outputs=told_outputs,
        takes=BFLOAT16 if size % INT8_STEP else takes,
    )


def value_bytes(count: int, bits: float, *, packs: bool) -> int:
    """Return the bytes of this many values: a byte each if nothing is packed."""
    return int(count * bits / 8) if packs else count


def qweight_estimate(
    layer: StoredLayer, *, is_symmetric: bool, packs: bool
) -> StorageEstimate | None:
    """Return the estimate of a layer in GPTQ's or AWQ's layout, None for another layer."""
    try:
        packed, zeros, scales = (layer.tensors[name] for name in ("qweight", "qzeros", "scales"))
    except KeyError:
        return None
    outputs = scales.shape[-1]
    if packed.shape[-1] == outputs:  # GPTQ packs along the inputs, AWQ along the outputs
        bits = zeros.shape[-1] * 32 // outputs
        inputs = packed.shape[0] * 32 // bits
    else:
        bits, inputs = 4, packed.shape[0]
    return integers_estimate(
        outputs, inputs, bits=bits, scales=scales, has_zeros=not is_symmetric, packs=packs,
    )  # fmt: skip


def tiles_estimate(
    values: TensorHeader, scales: TensorHeader, *, is_sparse: bool, packs: bool
) -> StorageEstimate:
    """Return the estimate of Marlin's tiles: 2:4 sparse ones of 4 bits become codes of pairs."""
    outputs, inputs = scales.shape[-1], values.shape[0] * (32 if is_sparse else 16)
    bits, size = values.shape[-1] * 2 // outputs, inputs // max(1, scales.num_values // outputs)
    if not is_sparse or not packs or bits != 4 or size % POINTS_STEP:
        return integers_estimate(
            outputs, inputs, bits=bits, scales=scales, has_zeros=False, packs=packs,
        )  # fmt: skip
    count, scale_bytes = outputs * inputs, 4 if scales.dtype in WIDE else 2
    return StorageEstimate(
        num_values=count,
        format=f"pairs of int4 out of four, groups of {size}",
        num_bytes=value_bytes(count, PAIR_BITS / 4, packs=packs) + scales.num_values * scale_bytes,
        outputs=outputs if outputs > 1 else 0,
        takes=INT8,
    )


def bytes_estimate(
    count: int, outputs: int, *, groups: int = 1, has_zeros: bool = False, takes: str = INT8
) -> StorageEstimate:
    """Return this many int8 values with float32 scales, and zero points, of groups."""
    group = count // outputs // groups
    factors = 4 * outputs * groups * (2 if has_zeros else 1)
    return StorageEstimate(
        num_values=count,
        format="int8" if groups == 1 else f"int8, groups of {group}",
        num_bytes=count + factors,
        outputs=outputs,
        takes=BFLOAT16 if groups > 1 and group % INT8_STEP else takes,
    )


def float8_estimate(
    layer: StoredLayer, *, block: int = 0, takes: str = BFLOAT16
) -> StorageEstimate | None:
    """Return the estimate of a layer in e4m3, None for another layer. `block`: how many inputs
    share a scale, 0 for all of them."""
    weight = layer.tensors.get("weight")
    if weight is None or not weight.dtype.startswith("float8") or len(weight.shape) != 2:
        return None
    count, (outputs, inputs) = weight.num_values, weight.shape
    if weight.dtype != "float8_e4m3fn" or block % STEP:
        return plain_estimate(count, "bfloat16")
    groups = -(-inputs // block) if block else 1
    num_bytes = count + 4 * outputs * groups
    can_round = groups == 1 or block % FLOAT8_STEP == 0
    return StorageEstimate(
        num_values=count,
        format="float8",
        num_bytes=num_bytes,
        outputs=outputs,
        takes=takes if can_round else BFLOAT16,
    )


def codes_estimate(
    outputs: int, inputs: int, *, group: int, scale_bytes: int, has_outer: bool, packs: bool
) -> StorageEstimate:
    """Return the estimate of 4-bit codes of a table, with a scale per group and one per output."""
    count = outputs * inputs
    factors = outputs * (-(-inputs // group) * scale_bytes + (4 if has_outer else 0))
    return StorageEstimate(
        num_values=count,
        format=f"4-bit floats, groups of {group}",
        num_bytes=value_bytes(count, 4, packs=packs) + factors + TABLE_BYTES,
        outputs=outputs if outputs > 1 else 0,
        shared_bytes=TABLE_BYTES,
        takes=BFLOAT16,
    )


def matrix_of(layer: StoredLayer) -> TensorHeader | None:
    """Return the full-precision matrix of a layer, None if it has none."""
    weight = layer.tensors.get("weight")
    is_float = weight is not None and weight.dtype in ("float32", "float16", "bfloat16", "float64")
    return weight if is_float and weight is not None and len(weight.shape) >= 2 else None


def made_estimate(
    layer: StoredLayer,
    *,
    bits: int,
    group: int = 0,
    scale_bytes: int,
    has_zeros: bool = False,
    packs: bool,
    format: str,
    takes: str,
) -> StorageEstimate | None:
    """Return the estimate of a full-precision layer that is quantized while it loads."""
    weight = matrix_of(layer)
    if weight is None:
        return None
    inputs = weight.shape[-1]
    outputs = weight.num_values // inputs
    groups = -(-inputs // group) if group else 1
    factors = outputs * groups * scale_bytes * (2 if has_zeros else 1)
    num_bytes = value_bytes(weight.num_values, bits, packs=packs) + factors
    told_outputs = outputs if len(weight.shape) == 2 else 0
    return StorageEstimate(
        num_values=weight.num_values,
        format=format,
        num_bytes=num_bytes,
        outputs=told_outputs,
        takes=takes,
    )


def int8_estimate(layer: StoredLayer, group: int, *, packs: bool) -> StorageEstimate | None:
    """Return the estimate of a layer made 8-bit while it loads. `group` 0: a scale an output."""
    weight = matrix_of(layer)
    is_whole = weight is None or not group or weight.shape[-1] <= group
    format = "int8" if is_whole else f"int8, groups of {group}"
    return made_estimate(
        layer, bits=8, group=group, scale_bytes=4, packs=packs, format=format, takes=INT8
    )


def dense_tensors(tensors: Mapping[str, TensorHeader]) -> Mapping[str, TensorHeader]:
    """Return a layer's tensors with its dense `weight` instead of the half that a bitmask selects;
    unchanged without a bitmask."""
    half = tensors.get("compressed")
    if half is None or "bitmask" not in tensors or len(half.shape) != 2:
        return tensors
    shape = (half.shape[0], 2 * half.shape[1])
    return {**tensors, "weight": replace(half, shape=shape, num_bytes=2 * half.num_bytes)}


def plain_estimate(count: int, dtype: str) -> StorageEstimate:
    """Return this many weights in full precision."""
    num_bytes = count * (4 if dtype in WIDE else 2)
    takes = BFLOAT16 if dtype == BFLOAT16 else FLOAT
    return StorageEstimate(num_values=count, format=dtype, num_bytes=num_bytes, takes=takes)
