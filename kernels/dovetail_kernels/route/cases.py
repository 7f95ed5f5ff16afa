"""Cases of route: scorings, groups, biases, equal scores, few experts and hundreds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from dovetail_kernels.op import Arguments, Case
from dovetail_kernels.random import normal

RULES: dict[str, dict[str, Any]] = {
    "softmax": {},
    "renormalized": {"renormalizes": True},
    "sigmoid": {"scoring": "sigmoid", "renormalizes": True, "least_sum": 1e-20, "factor": 2.5},
    "least_sum": {"scoring": "sigmoid", "renormalizes": True, "least_sum": 4.0},
}
GROUPS = {"num_groups": 4, "num_kept_groups": 2}


def cases() -> list[Case]:
    """Return the cases that are checked."""
    sizes = ((1, 8, 2), (5, 60, 4), (3, 128, 8), (40, 257, 9), (2, 3, 3), (4, 5, 1))
    plain = [_case(rule, *size) for rule in RULES for size in sizes]
    return plain + _special((1, 7, 33))


def small_cases() -> list[Case]:
    """Return the cases that are checked if kernels are interpreted."""
    return [_case(rule, 3, 20, 4) for rule in RULES] + _special((2,))


def perf_cases() -> list[Case]:
    """Return the cases that are timed."""
    sizes = ((1, 128, 8), (16, 128, 8), (512, 128, 8), (16, 512, 10))
    grouped = [_case("sigmoid", t, 256, 8, groups="two_best", has_bias=True) for t in (1, 512)]
    return [_case("renormalized", *size) for size in sizes] + grouped


def _special(tokens: tuple[int, ...]) -> list[Case]:
    """Return groups, biases, equal scores and other dtypes."""
    cases = []
    for t in tokens:
        cases += [
            _case("sigmoid", t, 64, 6, groups=groups, has_bias=bias)
            for groups in ("best", "two_best")
            for bias in (False, True)
        ]
        cases += [_case(rule, t, 32, 5, levels=3) for rule in ("softmax", "sigmoid")]
        cases += [_case("softmax", t, 32, 5, groups="best", levels=3)]
        cases += [_case("sigmoid", t, 40, 4, has_bias=True, dtype=torch.bfloat16)]
    return cases


def _case(
    rule: str,
    tokens: int,
    experts: int,
    picked: int,
    *,
    groups: str = "",
    has_bias: bool = False,
    levels: int = 0,
    dtype: torch.dtype = torch.float32,
) -> Case:
    words = [rule, f"T{tokens}_X{experts}_A{picked}"]
    words += [f"groups_by_{groups}"] if groups else []
    words += ["bias"] if has_bias else []
    words += ["equal"] if levels else []
    settings = RULES[rule] | ({**GROUPS, "group_score": groups} if groups else {})
    return Case(
        name="_".join(words),
        dtype=dtype,
        build=_builder(tokens, experts, picked, settings, has_bias, levels, dtype),
        mutates=("weights", "experts"),
        moved_bytes=tokens * (experts * dtype.itemsize + picked * 12),
        flops=tokens * experts * (picked + 20),
        rtol=2e-6,
        atol=2e-6,
    )


def _builder(
    tokens: int,
    experts: int,
    picked: int,
    settings: dict[str, Any],
    has_bias: bool,
    levels: int,
    dtype: torch.dtype,
) -> Callable[[torch.device], Arguments]:
    def build(device: torch.device) -> Arguments:
        scores = normal((tokens, experts), torch.float32, device, seed=experts)
        if dtype != torch.float32:  # distinct in their own type, too
            scores = scores.argsort(dim=-1).argsort(dim=-1) / 8 - 2
        if levels:
            scores = (scores * levels).round() / levels
        bias = normal((experts,), torch.float32, device, seed=1)
        return {
            "scores": scores.to(dtype),
            "weights": torch.zeros(tokens, picked, device=device),
            "experts": torch.zeros(tokens, picked, dtype=torch.int64, device=device),
            "bias": bias if has_bias else None,
            **settings,
        }

    return build
