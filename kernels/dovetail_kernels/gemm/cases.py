"""Cases of gemm: every format, from one row to many, odd sizes, every fused end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch

from dovetail_kernels.gemm.cases_vectors import VectorKind, make_vectors
from dovetail_kernels.gemm.panels import moved
from dovetail_kernels.gemm.weight import (
    FLOATS,
    FORMATS,
    Weight,
    narrow_bits,
    quantize_float8,
    quantize_int4,
    quantize_int8,
    quantize_int8_groups,
    quantize_table4,
    rounds_to_int8,
    usual_zero,
)
from dovetail_kernels.op import Arguments, Case
from dovetail_kernels.random import normal

GROUPS = {
    "int4": 64,
    "int4_int8": 128,
    "float8": 128,
    "table4": 32,
    "int8_float32": 32,
    "int8_int8": 32,
    **{f"int{bits}{end}": 32 for bits in (2, 3, 5, 6) for end in ("", "_int8")},
}
PLANES = tuple(f"int{bits}{end}" for bits in (2, 3, 5, 6) for end in ("", "_int8"))
"""Formats of integers that are held in planes of bits."""
VECTORS = ("vectors", "vectors_int8", "trits", "trits_int8")
ROUNDED_ERROR = 0.06
"""How far outputs may be off if activations become int8. A level is 1/127 of the largest of a few
inputs, and rounding is off by 0.3 of a level: 0.005 of an output of variance one. The worst of all
outputs is ten times that."""
MANY = 512
"""Rows for which a GPU spells codes out first."""
TOKEN_SCALED = ("int8", "int4_int8", "int8_int8", "int3_int8", "int6_int8")
"""Formats that are also checked with a scale a row, exactly."""
VECTOR_GROUPS = ((96, 0), (320, 0), (16, 256), (32, 256))
NINE_BITS = VectorKind()
POINTS = (
    VectorKind(code_bits=8),
    VectorKind(code_bits=10),
    VectorKind(code_bits=13),
    VectorKind(size=4, code_bits=12),
    VectorKind(books=1, code_bits=16),
    VectorKind(books=2, code_bits=8),
)
E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6])
TABLE = torch.cat([E2M1, -E2M1])
BYTES = {
    "float32": 4,
    "int8": 1,
    "float8": 1,
    "int8_float32": 1,
    "int8_int8": 1,
    "int4": 0.5,
    "int4_int8": 0.5,
    "table4": 0.5,
    **{name: narrow_bits(name) / 8 for name in PLANES},
    **{name: 17 / 64 if name.startswith("vectors") else 0.2 for name in VECTORS},
}
STEPPED = ("int4", "int4_int8", "int8_float32", "int8_int8")
ROWS = (1, 2, 5, 12, 13, 40, 131)
PERF_ROWS = (1, 4, 8, 16, 32, 256, 1024)
PERF_SHAPES = ((1024, 3072), (3072, 1024))
ENDS: dict[str, dict[str, Any]] = {
    "bias": {"bias": True},
    "residual": {"residual": True},
    "bias_gelu": {"bias": True, "activation": "gelu"},
    "gated_silu": {"is_gated": True, "activation": "silu"},
    "gated_bias_gelu_tanh": {"is_gated": True, "bias": True, "activation": "gelu_tanh"},
    "rows_bias_silu": {"bias": True, "has_bias_rows": True, "residual": True, "activation": "silu"},
    "gated_rows_bias_silu": {
        "is_gated": True,
        "bias": True,
        "has_bias_rows": True,
        "activation": "silu",
    },
    "quick_gelu": {"activation": "quick_gelu"},
    "relu": {"activation": "relu"},
    "relu2": {"activation": "relu2"},
}


def cases() -> list[Case]:
    """Return the cases that are checked."""
    plain = [_case(f, m, _inputs(f), 70, {}, "plain") for f in FORMATS for m in ROWS]
    deep = [_case(f, m, 1000, 33, {}, "deep") for f in FORMATS for m in (1, 40)]
    ends = [
        _case(f, m, 72, 90, options, end)
        for f in (
            "float32",
            "bfloat16",
            "int8",
            "int4_int8",
            "int8_int8",
            "int6_int8",
            "table4",
            "vectors_int8",
            "trits",
        )
        for end, options in ENDS.items()
        for m in (1, 40)
    ]
    groups = [
        _case(
            f, m, 200, 64, {"group": group, "is_symmetric": even}, f"G{group}{'' if even else 'z'}"
        )
        for f in ("int4", "int4_int8", "int8_float32", "int8_int8")
        for group in (24, 32, 64, 128)
        for even in (True, False)
        for m in (1, 7)
    ]
    planes = [
        _case(
            f, m, 200, 70, {"group": group, "is_symmetric": even}, f"G{group}{'' if even else 'z'}"
        )
        for f in PLANES
        for group in (16, 48)
        for even in (True, False)
        for m in (1, 7, 40)
    ]
    scales = [
        _case(f, m, 200, 64, {"group": group}, f"G{group}")
        for f, group in (("float8", 0), ("float8", 32), ("table4", 16), ("table4", 64))
        for m in (1, 7, 40, MANY)
    ]
    steps = [
        _case(f, m, 600, 70, {"group": group, "run": run}, f"G{group}R{run}")
        for f in (*STEPPED, *PLANES)
        for group, run in ((16, 256), (32, 256), (32, 32))
        for m in (1, 7, 40, MANY)
    ]
    vectors = [
        _case(f, m, 616, 70, {"group": group, "run": run, "kind": kind}, f"{kind.label}G{group}")
        for kind in POINTS
        for f in (("vectors",) if kind.books else ("vectors", "vectors_int8"))
        for group, run in (((640, 0),) if kind.books else VECTOR_GROUPS)
        for m in (1, 7, 40)
    ]
    exact = [
        _case(f, m, k, 70, {"has_token_scales": True}, "token")
        for f in TOKEN_SCALED
        for k in (100, 600)
        for m in (1, 7, 40)
    ]
    return (
        plain + deep + ends + groups + planes + scales + steps + vectors + exact + _halves(FORMATS)
    )


def _inputs(format: str) -> int:
    """Return inputs that are odd for most formats; vectors are of eight."""
    return 104 if format in VECTORS else 100


def perf_cases() -> list[Case]:
    """Return the cases that are timed: layers of a 0.6 billion parameter model."""
    return [
        _case(f, m, k, n, {}, "perf") for f in FORMATS for k, n in PERF_SHAPES for m in PERF_ROWS
    ]


def _halves(ended: Sequence[str]) -> list[Case]:
    """Return cases of 16-bit activations, which the CPU's kernels leave to the GPU's: each way that
    weights meet them. Many rows have fused ends, a program a row, in the formats `ended`."""
    ends: dict[str, Any] = {"bias": True, "residual": True, "activation": "silu"}
    return [
        replace(
            _case(f, m, 200, 72, options | (ends if m < MANY or f in ended else {}),
                  "_".join((str(dtype)[6:], *options)), dtype),
            rtol=ROUNDED_ERROR if rounds_to_int8(f) else 2e-2,
            atol=ROUNDED_ERROR if rounds_to_int8(f) else 2e-2,
        )
        for dtype in (torch.bfloat16, torch.float16)
        for f, options in (
            ("int8", {}), ("int4", {}), ("int4", {"is_symmetric": False}), ("int4_int8", {}),
            ("int4", {"group": 32, "run": 32}), ("float8", {}), ("table4", {}),
            ("table4", {"group": 16}), ("int8_float32", {}),
        )
        for m in ((3, 70) if rounds_to_int8(f) else (3, 70, MANY))
    ]  # fmt: skip


def _few_and_many(format: str) -> tuple[int, ...]:
    """Return numbers of rows; many only if codes are spelled out for them (gemm/gpu.py)."""
    return (3,) if rounds_to_int8(format) else (3, MANY)


def small_cases() -> list[Case]:
    """Return the cases that are checked if kernels are interpreted: every format, every fused end,
    every layout of scales, few rows in parts and many without."""
    planes = ("int2", "int3_int8", "int5", "int6_int8")
    left_out = {*PLANES, "vectors_int8"} - {*planes}  # a table takes floats on a GPU
    formats = [f for f in FORMATS if f not in left_out]
    plain = [_case(f, m, _inputs(f), 70, {}, "plain") for f in formats for m in (1, 20, 70)]
    deep = [_case(f, 2, 1000, 33, {}, "deep") for f in formats]
    ends = [
        _case(f, m, k, 36, options, end)
        for f, k in (("int8", 520), ("int4", 1100))
        for end, options in ENDS.items()
        for m in (2, 70)
    ]
    groups = [
        _case(f, m, 200, 30, {"group": group, "is_symmetric": even}, f"G{group}{even:d}")
        for f in ("int4", "int4_int8", "int8_float32", "int8_int8")
        for group in (24, 64)
        for even in (True, False)
        for m in _few_and_many(f)
    ]
    scales = [
        _case(f, m, 200, 30, {"group": group}, f"G{group}")
        for f, group in (("float8", 0), ("float8", 64), ("table4", 16), ("table4", 64))
        for m in _few_and_many(f)
    ]
    steps = [
        _case(f, m, 600, 30, {"group": group, "run": run}, f"G{group}R{run}")
        for f in STEPPED
        for group, run in ((16, 256), (32, 256), (32, 32))
        for m in _few_and_many(f)
    ]
    steps += [
        _case(f, m, 600, 30, {"group": group, "run": 256}, f"G{group}R256")
        for f, group in (("int2_int8", 16), ("int3", 16), ("int5_int8", 32), ("int6", 16))
        for m in _few_and_many(f)
    ]
    steps.append(_case("int4", MANY, 200, 36, ENDS["gated_silu"], "gated_silu"))
    exact = [
        _case(f, m, 200, 30, {"has_token_scales": True}, "token")
        for f in TOKEN_SCALED
        for m in (3, 70)
    ]
    books = [
        _case("vectors", 3, 200, 30, {"group": 320, "kind": kind}, kind.label)
        for kind in POINTS
        if kind.books
    ]
    cases = plain + deep + ends + groups + scales + steps + exact + books
    return cases + _halves(ended=("float8",))


def make_weight(
    format: str,
    outputs: int,
    inputs: int,
    *,
    group: int = 0,
    is_symmetric: bool = True,
    run: int = 0,
    kind: VectorKind = NINE_BITS,
) -> Weight:
    """Return a random matrix in a format, entries of variance about 1 / inputs."""
    if format in VECTORS:
        return make_vectors(format, outputs, inputs, group=group or 32, run=run, kind=kind)
    if run:
        return _stepped(format, outputs, inputs, group, run)
    wide = normal((outputs, inputs), torch.float32, torch.device("cpu"), seed=2) * inputs**-0.5
    dtype = FLOATS.get(format.partition("_")[0])
    if dtype is not None:
        return Weight(format=format, values=wide.to(dtype))
    if format == "int8":
        return quantize_int8(wide)
    if format in ("int8_float32", "int8_int8"):
        weight = _int8(wide, group or GROUPS[format], is_symmetric=is_symmetric)
        return replace(weight, format=format)
    if format == "float8":
        return quantize_float8(wide, group)
    if format == "table4":
        return _table4(wide, group or GROUPS[format])
    if format in PLANES:
        return _planes(format, wide, group or GROUPS[format], is_symmetric=is_symmetric)
    weight = quantize_int4(wide, group or GROUPS[format], is_symmetric=is_symmetric)
    return replace(weight, format=format)


def _stepped(format: str, outputs: int, inputs: int, group: int, run: int) -> Weight:
    """Return integers whose scales and offsets are small integers times a step of their run."""
    random = torch.Generator().manual_seed(outputs + inputs + group)
    bits = narrow_bits(format)
    low, high = (0, 1 << bits) if bits else (-60, 60)
    codes = (0, 16) if bits == 2 and run == group * 16 else (-31, 64)
    values = torch.randint(low, high, (outputs, inputs), generator=random)
    groups, runs = -(-inputs // group), -(-inputs // run)
    scales, offsets = (
        torch.randint(*codes, (outputs, groups), generator=random).to(torch.int8) for _ in range(2)
    )
    size = inputs**-0.5 / (32 * high)
    steps, offset_steps = (
        (torch.rand(outputs, runs, generator=random) + 0.5) * size * factor for factor in (1, 9)
    )
    return Weight(
        format=format,
        values=values.to(torch.uint8 if bits else torch.int8),
        scales=scales,
        offsets=offsets,
        steps=steps.half(),
        offset_steps=offset_steps.half(),
        group=group,
        run=run,
    )


def _planes(format: str, wide: torch.Tensor, group: int, *, is_symmetric: bool) -> Weight:
    """Return values of few bits, with float16 scales and, if not symmetric, offsets."""
    bits = narrow_bits(format)
    grouped = torch.nn.functional.pad(wide, (0, -wide.shape[1] % group)).view(len(wide), -1, group)
    scales = (grouped.abs().amax(2, keepdim=True) / 2 ** (bits - 1)).half()
    levels = (grouped / scales.float() + usual_zero(format)).round().clamp(0, 2**bits - 1)
    values = levels.view(len(wide), -1)[:, : wide.shape[1]].to(torch.uint8)
    scales = scales.squeeze(2)
    offsets = None if is_symmetric else scales * -(usual_zero(format) + 0.25)
    return Weight(format=format, values=values, scales=scales, offsets=offsets, group=group)


def _int8(wide: torch.Tensor, group: int, *, is_symmetric: bool) -> Weight:
    weight = quantize_int8_groups(wide, group)
    if is_symmetric or weight.scales is None:
        return weight
    return replace(
        weight, zeros=normal(weight.scales.shape, torch.float32, wide.device, seed=4) * 9
    )


def _table4(wide: torch.Tensor, group: int) -> Weight:
    """Return codes whose scales are e4m3 times one of their output, for groups of 16; bfloat16 for
    others."""
    if group != 16:
        return quantize_table4(wide, group, TABLE, dtype=torch.bfloat16)
    outer = wide.abs().amax(dim=1) / (6 * 448)
    weight = quantize_table4(wide / outer.unsqueeze(1), group, TABLE, dtype=torch.float8_e4m3fn)
    return replace(weight, outer=outer)


def _case(
    format: str,
    rows: int,
    inputs: int,
    outputs: int,
    options: dict[str, Any],
    label: str,
    dtype: torch.dtype = torch.float32,
) -> Case:
    weight_bytes = BYTES.get(format, 2.0)
    is_int8, is_exact = rounds_to_int8(format), options.get("has_token_scales", False)
    tolerance = 2e-5 if not is_int8 else 1e-4 if is_exact else ROUNDED_ERROR
    return Case(
        name=f"{format}_{label}_M{rows}_K{inputs}_N{outputs}",
        dtype=dtype,
        build=_builder(format, rows, inputs, outputs, options, dtype),
        moved_bytes=int(outputs * inputs * weight_bytes) + 4 * rows * (inputs + outputs),
        flops=2 * rows * inputs * outputs,
        rtol=tolerance,
        atol=tolerance,
    )


def _builder(
    format: str,
    rows: int,
    inputs: int,
    outputs: int,
    options: dict[str, Any],
    dtype: torch.dtype,
) -> Callable[[torch.device], Arguments]:
    def build(device: torch.device) -> Arguments:
        weight = make_weight(
            format,
            outputs,
            inputs,
            group=options.get("group", 0),
            is_symmetric=options.get("is_symmetric", True),
            run=options.get("run", 0),
            kind=options.get("kind", NINE_BITS),
        )
        weight = replace(weight, has_token_scales=options.get("has_token_scales", False))
        is_gated = options.get("is_gated", False)
        width = outputs // 2 if is_gated else outputs
        arguments: Arguments = {
            "x": normal((rows, inputs), dtype, device, seed=1),
            "weight": moved(weight, device),
            "activation": options.get("activation", "none"),
            "is_gated": is_gated,
        }
        if options.get("bias"):
            arguments["bias"] = normal((outputs,), dtype, device, seed=3)
        if options.get("has_bias_rows"):  # small: an error of the gate is multiplied by up
            arguments["bias"] = normal((rows, outputs), dtype, device, seed=3) / 4
        if options.get("residual"):
            arguments["residual"] = normal((rows, width), dtype, device, seed=4)
        return arguments

    return build
