"""route on the native CPU library. A Route holds its argument struct ready.

One Route serves one thread at a time.
"""

from __future__ import annotations

import ctypes

import torch

from dovetail_kernels.cpu.implementation import layer_implementation
from dovetail_kernels.cpu.library import Library, needed_library

_pointer, _int64, _int32 = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32
SCORINGS = ("softmax", "sigmoid")
GROUP_SCORES = ("best", "two_best")


class RouteArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [
        ("scores", _pointer),
        ("bias", _pointer),
        ("weights", _pointer),
        ("experts", _pointer),
        ("scores_stride", _int64),
        ("tokens", _int64),
        ("num_experts", _int64),
        ("picked", _int64),
        ("num_groups", _int64),
        ("num_kept_groups", _int64),
        ("least_sum", ctypes.c_float),
        ("factor", ctypes.c_float),
        ("is_sigmoid", _int32),
        ("renormalizes", _int32),
        ("adds_two", _int32),
        ("reserved", _int32),
    ]


class Route:
    """One rule of routing (see the op)."""

    def __init__(
        self,
        *,
        scoring: str = "softmax",
        renormalizes: bool = False,
        least_sum: float = 0.0,
        factor: float = 1.0,
        num_groups: int = 1,
        num_kept_groups: int = 1,
        group_score: str = "best",
        source: Library | None = None,
    ) -> None:
        native = source or needed_library()
        self._kernel = native.kernel("route", RouteArgs)
        self._args = RouteArgs(
            is_sigmoid=SCORINGS.index(scoring),
            renormalizes=int(renormalizes),
            least_sum=least_sum,
            factor=factor,
            num_groups=num_groups,
            num_kept_groups=num_kept_groups,
            adds_two=GROUP_SCORES.index(group_score),
        )
        self._reference = ctypes.byref(self._args)

    def __call__(
        self,
        scores: torch.Tensor,
        weights: torch.Tensor,
        experts: torch.Tensor,
        bias: torch.Tensor | None = None,
    ) -> None:
        """Fill `weights` and `experts`. Rows of scores may be strided; the others are contiguous.

        Shapes: scores [T, X] and bias [X] float32, weights [T, A] float32, experts [T, A] int64
        Mutates: weights, experts
        """
        args = self._args
        args.scores, args.scores_stride = scores.data_ptr(), scores.stride(0)
        args.tokens, args.num_experts = scores.shape
        args.bias = None if bias is None else bias.data_ptr()
        args.weights, args.experts = weights.data_ptr(), experts.data_ptr()
        args.picked = experts.shape[1]
        failed = self._kernel(self._reference)
        if failed == 1:
            raise MemoryError(f"no memory for the scores of {args.num_experts} experts")
        if failed:
            raise ValueError(f"{args.picked} of {args.num_experts} experts cannot be picked")


RULE = (
    *("scoring", "renormalizes", "least_sum", "factor"),
    *("num_groups", "num_kept_groups", "group_score"),
)
NATIVE = layer_implementation(Route, RULE)
