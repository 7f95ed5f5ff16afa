"""Mixture of experts: a router that picks A of X experts per token, and the experts."""

from __future__ import annotations

from dataclasses import replace
from typing import ClassVar

import torch
from msgspec import structs
from torch import nn

from dovetail.interfaces.model import BuildContext
from dovetail.interfaces.quantization import Gate
from dovetail.layers.linear import ReplicatedLinear
from dovetail.layers.moe.block_sum import plus_rest
from dovetail.layers.moe.experts import Experts
from dovetail.layers.opaque import is_traced
from dovetail.layers.repeated import of_tensors
from dovetail.parallel.collectives import all_reduce
from dovetail.parallel.groups import tensor_group
from dovetail_plugins.layers.native_routing import native_routing
from dovetail_plugins.layers.routing import RoutingRule, route


class MoE(nn.Module):
    """Router and experts of one block; `name` is the block's path in the checkpoint.

    `routes_in_float32`: the scores are computed in float32, whatever the model's type. With
    `has_correction_bias` the checkpoint has a bias for the choice of experts, which stays float32.
    `act`, `alternates` and `bias` are the experts'; the router has a bias if they have. `size`: the
    experts' input and output size, if it is not the hidden size. `is_gated`: see Experts.
    """

    experts_class: ClassVar[type[Experts]] = Experts

    def __init__(
        self,
        context: BuildContext,
        name: str,
        *,
        num_experts: int,
        rule: RoutingRule,
        inner: int,
        act: str | Gate,
        alternates: bool = False,
        bias: bool = False,
        gate: str = "gate",
        routes_in_float32: bool = False,
        has_correction_bias: bool = False,
        size: int | None = None,
        is_gated: bool = True,
    ) -> None:
        super().__init__()
        hidden = context.model.hidden_size
        self.rule = rule
        self._routing = native_routing(context, rule)
        self.group = tensor_group(context.rank)
        self.routes_in_float32 = routes_in_float32
        router = in_float32(context) if routes_in_float32 else context
        self.gate = self.build_gate(router, f"{name}.{gate}", num_experts, bias=bias)
        self.e_score_correction_bias = (
            self.build_correction_bias(context, num_experts) if has_correction_bias else None
        )
        self.experts = self.experts_class(
            context,
            f"{name}.experts",
            num_experts=num_experts,
            size=size or hidden,
            inner=inner,
            act=act,
            alternates=alternates,
            bias=bias,
            is_gated=is_gated,
            weighs_inputs=rule.weighs_inputs,
        )

    def build_gate(
        self, context: BuildContext, name: str, num_experts: int, *, bias: bool
    ) -> ReplicatedLinear:
        """Return the router's matrix."""
        return ReplicatedLinear(context, name, context.model.hidden_size, num_experts, bias=bias)

    def build_correction_bias(self, context: BuildContext, num_experts: int) -> nn.Parameter:
        """Return the score bias for the choice of experts. Shapes: [X] float32"""
        empty = torch.empty(num_experts, dtype=torch.float32, device=context.device)
        return nn.Parameter(empty, requires_grad=False)

    def forward(self, x: torch.Tensor, residual: torch.Tensor | None = None) -> torch.Tensor:
        """Shapes: x, residual [T, E] -> [T, E], whole on every rank"""
        return self.routed(x, residual)

    def routed(
        self,
        x: torch.Tensor,
        residual: torch.Tensor | None = None,
        shared: torch.Tensor | None = None,
        shared_scores: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Return the experts' sum, plus a residual and a shared expert's output (see
        Experts.forward), which all ranks have whole.

        Shapes: x, residual, shared [T, E], shared_scores [T, 1] -> [T, E], whole on every rank
        """
        weights, experts = self.picked(x)
        weighs_before = self.rule.weighs_inputs and not self.experts.weighs_natively
        multiply = self._multiply_weighed if weighs_before else self.experts
        more = (residual, shared, shared_scores) if self.group.rank == 0 else ()
        return all_reduce(multiply(x, weights, experts, *more), self.group)

    def picked(self, x: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        """Return weights and numbers of each token's experts. Shapes: x [T, E] -> [T, A] each"""
        return self._route(self.gate(x.float() if self.routes_in_float32 else x))

    def _route(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        bias = self.e_score_correction_bias
        if self._routing is not None and not is_traced():
            return self._routing(scores, bias)
        weights, experts = of_tensors(lambda tensor: route(tensor, self.rule, bias), scores)
        return weights, experts

    def _multiply_weighed(
        self,
        x: torch.Tensor,
        weights: torch.Tensor,
        experts: torch.Tensor,
        *more: torch.Tensor | None,
    ) -> torch.Tensor:
        """Return the sum of the picked experts' outputs for x times their weights: each pick is
        treated as a token with one expert. Shapes: as `Experts.forward`"""
        weighed = (x.unsqueeze(1) * weights.unsqueeze(-1).to(x.dtype)).flatten(0, 1)
        ones, alone = torch.ones_like(weights).view(-1, 1), experts.reshape(-1, 1)
        out: torch.Tensor = self.experts(weighed, ones, alone)
        return plus_rest(out.unflatten(0, experts.shape).sum(dim=1), *more)


def in_float32(context: BuildContext) -> BuildContext:
    """Return the context of layers that compute in float32 in a model of any type."""
    return replace(context, model=structs.replace(context.model, dtype="float32"))
