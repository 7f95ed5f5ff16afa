"""The layers of encoders of images and sound: dovetail's own, called as transformers calls them.

transformers' code passes [1, T, I] to dovetail layers, which take only the rows.
"""

from __future__ import annotations

import copy

import torch
import torch.nn.functional as F
from torch import nn

from dovetail.interfaces.model import BuildContext
from dovetail.layers.linear import (
    ActivatedLinear,
    ColumnParallelLinear,
    GatedLinear,
    MergedColumnParallelLinear,
    RowParallelLinear,
)
from dovetail.layers.linear.placement import Placement
from dovetail.layers.norm import LayerNorm, RMSNorm
from dovetail_plugins.models._hf_swap import AnyShape


class TowerColumns(AnyShape, ColumnParallelLinear):
    """Outputs divided over ranks."""


class TowerRows(AnyShape, RowParallelLinear):  # type: ignore[misc]  # takes no residual
    """Inputs divided over ranks."""


class TowerActivated(AnyShape, ActivatedLinear):
    """Outputs divided over ranks, which end in an activation."""


class TowerQKV(AnyShape, MergedColumnParallelLinear):
    """Queries, keys and values in one, divided by heads."""


class TowerGatedMLP(AnyShape, GatedLinear):
    """A gated feed-forward block: down(act(gate) * up), gate and up in one product."""

    def __init__(
        self, context: BuildContext, name: str, gate: nn.Linear, down: nn.Linear, *, act: str
    ) -> None:
        sizes = gate.in_features, gate.out_features
        has_bias = gate.bias is not None
        super().__init__(context, f"{name}.gate_up_proj", *sizes, act=act, bias=has_bias)
        self.down_proj = TowerRows(
            context,
            f"{name}.down_proj",
            down.in_features,
            down.out_features,
            bias=down.bias is not None,
        )

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        """Shapes: x [..., I] -> [..., O]"""
        found: torch.Tensor = self.down_proj(super().forward(x))
        return found

    def place(self, leaf: str, part: str | None) -> list[Placement] | None:
        """Return where tensors such as "gate_proj.weight" go."""
        words = leaf.split(".")
        if len(words) == 2 and words[0] in ("gate_proj", "up_proj"):
            return super().place(words[1], words[0].removesuffix("_proj"))
        return super().place(leaf, part)


class TowerNorm(AnyShape, LayerNorm):  # type: ignore[misc]  # takes no delta
    """A norm over rows, whatever their layout."""


class TowerRMSNorm(AnyShape, RMSNorm):  # type: ignore[misc]  # takes no delta
    """The same over the root of the mean square."""


def tower_norm(context: BuildContext, module: nn.Module) -> nn.Module | None:
    """Return a norm of ours that computes what a module does, None if there is none."""
    if type(module) is nn.LayerNorm and len(module.normalized_shape) == 1:
        (size,) = module.normalized_shape
        has_weight, has_bias = module.weight is not None, module.bias is not None
        return TowerNorm(context, size, eps=module.eps, weight=has_weight, bias=has_bias)
    eps = _rms_eps(module)
    size = len(module.get_parameter("weight")) if eps is not None else 0
    return None if eps is None else TowerRMSNorm(context, size, eps=eps)


def _rms_eps(module: nn.Module) -> float | None:
    """Return the epsilon of a module that is x / rms(x) * weight, as a trial shows, else None."""
    facts = vars(module)
    eps = facts.get("variance_epsilon", facts.get("eps"))
    weight = module._parameters.get("weight")
    if not type(module).__name__.endswith("RMSNorm") or not isinstance(eps, float):
        return None
    if weight is None or weight.dim() != 1 or len(module._parameters) != 1 or module._modules:
        return None
    trial = copy.copy(module)
    numbers = torch.linspace(-2, 3, 3 * len(weight), device="cpu").view(3, -1).sin()
    trial._parameters = {"weight": nn.Parameter(numbers[0] + 0.5, requires_grad=False)}
    with torch.inference_mode():
        wanted = F.rms_norm(numbers, (len(weight),), trial.get_parameter("weight"), eps)
        is_same = torch.allclose(trial(numbers), wanted, rtol=1e-5, atol=1e-6)
    return eps if is_same else None
