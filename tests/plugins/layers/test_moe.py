"""The grouped experts equal the definition, token by token."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from dovetail.interfaces.data.spec import RankSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.layers.context import ForwardContext, forward_context, use_context
from dovetail.layers.moe.experts import Experts
from dovetail.layers.weights import load_weights
from dovetail_plugins.layers.routing import RoutingRule, route
from dovetail_testing.contract import model_spec
from dovetail_testing.ranks import ODD_AND_EVEN
from dovetail_testing.reference import ReferenceAttention
from dovetail_testing.tiny.transformer import PlainWeights

SPEC = model_spec(hidden_size=8)
CONTEXT = BuildContext(model=SPEC, quant=PlainWeights(None, SPEC), device="cpu")


@pytest.mark.parametrize("num_tokens", [1, 7])
def test_experts_equal_their_definition(num_tokens: int) -> None:
    experts = Experts(CONTEXT, "x", num_experts=5, size=8, inner=6, act="silu")
    generator = torch.Generator().manual_seed(0)
    for parameter in experts.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
    x = torch.randn(num_tokens, 8, generator=generator)
    rule = RoutingRule(num_picked=2, renormalizes=True)
    weights, picked = route(torch.randn(num_tokens, 5), rule)
    torch.testing.assert_close(weights.sum(-1), torch.ones(num_tokens))
    want = torch.zeros_like(x)
    for t in range(num_tokens):
        for weight, e in zip(weights[t], picked[t].tolist(), strict=True):
            gate, up = (experts.gate_up_proj[e] @ x[t]).chunk(2)
            want[t] += weight * (experts.down_proj[e] @ (F.silu(gate) * up))
    torch.testing.assert_close(experts(x, weights, picked), want)


def test_experts_of_other_ranks_add_nothing() -> None:
    """Two ranks hold two of four experts each, told one by one; a token may pick none of them."""
    generator = torch.Generator().manual_seed(0)
    stored = {
        f"{expert}.{name}.weight": torch.randn(*shape, generator=generator)
        for expert in range(4)
        for name, shape in (("gate_proj", (6, 8)), ("up_proj", (6, 8)), ("down_proj", (8, 6)))
    }
    ranks = [RankSpec(rank=r, world_size=2, tensor_rank=r, tensor_size=2) for r in (0, 1)]
    whole, *parts = (loaded(stored, rank) for rank in (RankSpec(), *ranks))
    assert [part.loaded for part in parts] == [(1, 3), (0, 2)]
    assert all(part.down_proj.shape == (2, 8, 6) for part in parts)
    x = torch.randn(3, 8, generator=generator)
    for picked in ([[0, 1], [2, 0], [3, 1]], [[0, 2], [2, 0], [0, 2]]):
        asked = x, torch.rand(3, 2, generator=generator), torch.tensor(picked)
        torch.testing.assert_close(parts[0](*asked) + parts[1](*asked), whole(*asked))
    assert not parts[0](*asked).any()


def loaded(stored: dict[str, torch.Tensor], rank: RankSpec) -> Experts:
    """Return one rank's experts, filled."""
    context = replace(CONTEXT, rank=rank, expert_placement=ODD_AND_EVEN)
    experts = Experts(context, "x", num_experts=4, size=8, inner=6, act="silu")
    fused = {f"{name}_proj": ("gate_up_proj", name) for name in ("gate", "up")}
    load_weights(nn.ModuleDict({"x": experts}), WeightMap(fused=fused),
                 {f"x.{name}": tensor for name, tensor in stored.items()}.items())  # fmt: skip
    return experts


def test_contexts_nest_and_end() -> None:
    backend = ReferenceAttention()
    one, two = (ForwardContext(backend=backend, prepared={}, caches={}) for _ in range(2))
    with use_context(one):
        with use_context(two):
            assert forward_context() is two
        assert forward_context() is one
    with pytest.raises(AssertionError):
        forward_context()
