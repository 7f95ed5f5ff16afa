"""NativeRouting: a routing rule by a kernel that runs it in one call.

On the native CPU library, or by Triton; elsewhere there is none, and the definition in torch runs.
Shape letters: T tokens, X experts, A of them picked per token.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import torch

from dovetail.interfaces.model import BuildContext
from dovetail.layers.native import fused_kernel, runs_natively
from dovetail_kernels import route
from dovetail_kernels.route.native import Route
from dovetail_plugins.layers.routing import RoutingRule


class NativeRouting:
    """A kernel that fills (scores, weights, experts, bias), and how many experts it picks."""

    def __init__(self, kernel: Callable[..., None], num_picked: int) -> None:
        self._kernel = kernel
        self._num_picked = num_picked

    def __call__(
        self, scores: torch.Tensor, bias: torch.Tensor | None = None
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return (weights, expert ids) of each token's experts, the best first; `bias` only affects
        the choice.

        Shapes: scores [T, X], bias [X] float32 -> [T, A] float32, [T, A] int64
        """
        shape = scores.shape[0], self._num_picked
        weights = torch.empty(shape, dtype=torch.float32, device=scores.device)
        experts = torch.empty(shape, dtype=torch.int64, device=scores.device)
        if len(scores):
            self._kernel(scores, weights, experts, bias)
        return weights, experts


def native_routing(context: BuildContext, rule: RoutingRule) -> NativeRouting | None:
    """Return the kernel of a rule (see dovetail_kernels.route), or None if none runs it."""
    if rule.scoring not in ("softmax", "sigmoid"):
        return None
    options: dict[str, Any] = {
        "scoring": rule.scoring,
        "renormalizes": rule.renormalizes,
        "least_sum": rule.least_sum,
        "factor": rule.factor,
        "num_groups": rule.num_groups,
        "num_kept_groups": rule.num_kept_groups,
        "group_score": rule.group_score,
    }
    if runs_natively(route.OP, context):
        return NativeRouting(Route(**options), rule.num_picked)
    run = fused_kernel(route.OP, context)
    return None if run is None else NativeRouting(partial(run, **options), rule.num_picked)
