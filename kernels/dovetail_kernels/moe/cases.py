"""Cases of moe: formats of the experts' matrices, one token and many, unpicked experts, and experts
of other ranks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from dovetail_kernels.gemm.cases import BYTES, ROUNDED_ERROR, make_weight
from dovetail_kernels.gemm.panels import moved
from dovetail_kernels.gemm.weight import Weight, rounds_to_int8
from dovetail_kernels.moe.reference import SILU_CLAMPED, SWIGLU_OAI
from dovetail_kernels.op import Arguments, Case
from dovetail_kernels.random import normal

FORMATS = ("float32", "int8", "int4", "int4_int8", "float8", "table4", "int8_float32")
LIMIT = 0.7
"""So low that many numbers are beyond it."""
PER_OUTPUT = ("values", "scales")


def cases() -> list[Case]:
    """Return the cases that are checked."""
    tokens = (1, 3, 40, 200)
    plain = [_case(f, t, 96, 72, 6, 2, torch.float32) for f in FORMATS for t in tokens]
    return plain + _halves(tokens) + _shapes() + _plain() + _biased()


def small_cases() -> list[Case]:
    """Return the cases that are checked if kernels are interpreted."""
    return (
        [_case(f, 9, 72, 40, 6, 2, torch.float32) for f in FORMATS]
        + _halves((3,))
        + _shapes()
        + _plain()
        + _biased()
    )


def perf_cases() -> list[Case]:
    """Return the cases that are timed: a layer of 128 experts, 8 of them picked."""
    return [
        _case(f, t, 2048, 768, 128, 8, torch.bfloat16)
        for f in ("bfloat16", "int8", "int4", "float8")
        for t in (1, 16, 64, 1024)
    ]


def _halves(tokens: tuple[int, ...]) -> list[Case]:
    return [
        _case(f, t, 96, 72, 6, 2, dtype)
        for f, dtype in (
            ("bfloat16", torch.bfloat16), ("float16", torch.float16), ("int4", torch.bfloat16),
            ("float8", torch.bfloat16),
        )
        for t in tokens
    ]  # fmt: skip


def _plain() -> list[Case]:
    """Return experts without a gate."""
    kinds = [(name, torch.float32) for name in ("float32", "int4")] + [("bfloat16", torch.bfloat16)]
    return [
        _case(name, tokens, 40, 24, 4, 2, dtype, is_gated=False)
        for name, dtype in kinds
        for tokens in (1, 9)
    ]


def _biased() -> list[Case]:
    """Return experts with biases, gated as gpt-oss does it and not, and clamped ones without."""
    kinds = [(name, torch.float32) for name in ("float32", "table4")]
    kinds += [("bfloat16", torch.bfloat16)]
    return [
        _case(name, tokens, 40, 32, 4, 2, dtype, is_gated=is_gated, has_biases=True)
        for name, dtype in kinds
        for tokens, is_gated in ((1, True), (9, True), (9, False))
    ] + [_case(name, 9, 40, 32, 4, 2, dtype, clamps=True) for name, dtype in kinds]


def _shapes() -> list[Case]:
    """Return one picked expert, all picked, more than fit a block, and none for most experts; and
    some of these with two experts held by other ranks."""
    shapes = ((7, 40, 24, 3, 1), (5, 40, 24, 4, 4), (90, 40, 24, 2, 1), (2, 40, 24, 33, 3))
    absent = [_case("float32", *shape, torch.float32, absent=2) for shape in shapes[:3]]
    return [_case("float32", *shape, torch.float32) for shape in shapes] + absent


def _case(
    format: str,
    tokens: int,
    size: int,
    inner: int,
    experts: int,
    picked: int,
    dtype: torch.dtype,
    *,
    absent: int = 0,
    is_gated: bool = True,
    has_biases: bool = False,
    clamps: bool = False,
) -> Case:
    used = min(experts, tokens * picked)
    weight_bytes = int(used * 3 * size * inner * BYTES.get(format, 2.0))
    is_half = dtype != torch.float32
    bound = ROUNDED_ERROR if rounds_to_int8(format) else 2e-2 if is_half else 3e-5
    return Case(
        name=f"{format}_T{tokens}_E{size}_F{inner}_X{experts}_A{picked}"
        + (f"_{absent}_absent" if absent else "")
        + ("" if is_gated else "_plain")
        + ("_biases" if has_biases else "")
        + ("_clamped" if clamps else ""),
        dtype=dtype,
        build=_builder(
            format,
            tokens,
            size,
            inner,
            experts,
            picked,
            absent,
            dtype,
            is_gated,
            has_biases,
            clamps,
        ),
        moved_bytes=weight_bytes + 2 * tokens * size * dtype.itemsize,
        flops=6 * tokens * picked * size * inner,
        rtol=bound,
        atol=bound,
    )


def _builder(
    format: str,
    tokens: int,
    size: int,
    inner: int,
    experts: int,
    picked: int,
    absent: int,
    dtype: torch.dtype,
    is_gated: bool,
    has_biases: bool,
    clamps: bool,
) -> Callable[[torch.device], Arguments]:
    def build(device: torch.device) -> Arguments:
        random = torch.Generator().manual_seed(tokens)
        scores = torch.rand(tokens, experts + absent, generator=random)
        weights, ids = scores.topk(picked, dim=-1)
        ids = torch.where(ids < experts, ids, -1)
        first = [make_weight(format, (1 + is_gated) * inner, size) for _ in range(experts)]
        second = [make_weight(format, size, inner) for _ in range(experts)]
        biases = tuple(
            normal((experts, width), dtype, device, seed=width) * 0.3
            for width in ((1 + is_gated) * inner, size)
        )
        more: dict[str, Any] = {"biases": biases} if has_biases else {}
        more |= {"limit": LIMIT} if has_biases or clamps else {}
        gated = SWIGLU_OAI if has_biases else SILU_CLAMPED if clamps else "silu"
        return {
            **more,
            "x": normal((tokens, size), dtype, device, seed=1),
            "gate_up": [moved(rolled(w, n), device) for n, w in enumerate(first)],
            "down": [moved(rolled(w, n), device) for n, w in enumerate(second)],
            "weights": weights.to(device),
            "experts": ids.to(device),
            "activation": gated if is_gated else "relu2",
            "is_gated": is_gated,
        }

    return build


def rolled(weight: Weight, by: int) -> Weight:
    """Return a weight whose outputs are moved on: each expert another matrix."""
    rolled: dict[str, Any] = {}
    for name in PER_OUTPUT:
        tensor = getattr(weight, name)
        if tensor is not None:
            is_float8 = tensor.dtype == torch.float8_e4m3fn
            bytewise = tensor.view(torch.uint8) if is_float8 else tensor
            rolled[name] = bytewise.roll(by, 0).view(tensor.dtype)
    return replace(weight, **rolled)
