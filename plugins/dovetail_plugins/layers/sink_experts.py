"""Experts of which some compute every token: the router scores them as well, and they take part in
the sum that a token's weights are divided by.

With s the router's scores and A picked of the X experts that are picked from, by s + b:

    weights = g f s_i / (sum over picked and shared experts j of s_j)       # s: sigmoids

Source: Thinking Machines Lab, Inkling, 2026, as transformers has it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import nn

from dovetail.interfaces.model import BuildContext
from dovetail.layers.linear.placement import Placement, behind_experts
from dovetail.layers.moe.experts import Experts
from dovetail_plugins.layers.moe import MoE
from dovetail_plugins.layers.routing import RoutingRule, weigh

SHARED = "shared."
"""What precedes the names of the shared experts' stacked matrices, below the layer's name."""


class SinkExperts(Experts):
    """Experts whose last `num_shared` compute every token; a checkpoint stacks those by
    themselves."""

    num_shared = 0

    def place_tensor(
        self, leaf: str, part: str | None, shape: Sequence[int]
    ) -> list[Placement] | None:
        """Return the placements of one kind's stacked matrices, or of all experts' (see
        Experts)."""
        own = leaf.removeprefix(SHARED)
        if own not in self._stored or (leaf == own and shape[0] == self.num_experts):
            return self.place(leaf, part)
        first, count = 0, self.num_experts - self.num_shared
        if leaf != own:
            first, count = count, self.num_shared
        placements = []
        for slot, expert in enumerate(self.loaded):
            if first <= expert < first + count:
                placements += self._stacked(own, slot, part, expert - first, count)
        return placements

    def _stacked(
        self, name: str, slot: int, part: str | None, number: int, count: int
    ) -> list[Placement]:
        """Return the placements of a slot's tensor, the `number`th of `count` stacked ones."""
        return [
            replace(
                placement,
                target=placement.target.unsqueeze(0),
                cuts=behind_experts(placement.cuts, number, count),
            )
            for placement in self._place(name, slot, part, is_whole=False)
        ]


class SinkMoE(MoE):
    """Router and experts, the shared ones among them. Shapes: global_scale [1]"""

    experts_class = SinkExperts

    def __init__(
        self,
        context: BuildContext,
        name: str,
        *,
        num_experts: int,
        num_shared: int,
        rule: RoutingRule,
        **settings: Any,
    ) -> None:
        all_experts = num_experts + num_shared
        super().__init__(
            context,
            name,
            num_experts=all_experts,
            rule=replace(rule, renormalizes=True, least_sum=1e-20),
            routes_in_float32=True,
            **settings,
        )
        assert isinstance(self.experts, SinkExperts)
        self.experts.num_shared = num_shared
        self.num_routed = num_experts
        self.e_score_correction_bias = self.build_correction_bias(context, num_experts)
        device = context.device
        self.global_scale = nn.Parameter(torch.empty(1, device=device), requires_grad=False)
        shared = torch.arange(num_experts, all_experts, device=device)
        self.register_buffer("shared", shared, persistent=False)

    def _route(self, scores: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        bias = self.e_score_correction_bias
        assert bias is not None
        likely = scores[:, : self.num_routed].float().sigmoid() + bias
        picked = likely.topk(self.rule.num_picked, dim=-1).indices
        shared = self.get_buffer("shared").expand(len(scores), -1)
        experts = torch.cat([picked, shared], dim=-1)
        return weigh(scores, self.rule, experts) * self.global_scale, experts
