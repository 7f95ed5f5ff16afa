"""The grouped experts equal the definition, token by token."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from dovetail.interfaces.model import BuildContext
from dovetail.layers.context import ForwardContext, forward_context, use_context
from dovetail.layers.moe import Experts, route
from dovetail.testing.contract import model_spec
from dovetail.testing.reference import ReferenceAttention
from dovetail.testing.tiny import PlainWeights

SPEC = model_spec(hidden_size=8)
CONTEXT = BuildContext(model=SPEC, quant=PlainWeights(None, SPEC), device="cpu")


@pytest.mark.parametrize("num_tokens", [1, 7])
def test_experts_equal_their_definition(num_tokens: int) -> None:
    experts = Experts(CONTEXT, "x", num_experts=5, size=8, inner=6, act="silu")
    generator = torch.Generator().manual_seed(0)
    for parameter in experts.parameters():
        parameter.data.copy_(torch.randn(parameter.shape, generator=generator))
    x = torch.randn(num_tokens, 8, generator=generator)
    weights, picked = route(torch.randn(num_tokens, 5), 2, renormalizes=True)
    torch.testing.assert_close(weights.sum(-1), torch.ones(num_tokens))
    want = torch.zeros_like(x)
    for t in range(num_tokens):
        for weight, e in zip(weights[t], picked[t].tolist(), strict=True):
            gate, up = (experts.gate_up_proj[e] @ x[t]).chunk(2)
            want[t] += weight * (experts.down_proj[e] @ (F.silu(gate) * up))
    torch.testing.assert_close(experts(x, weights, picked), want)


def test_contexts_nest_and_end() -> None:
    backend = ReferenceAttention()
    one, two = (ForwardContext(backend=backend, prepared={}, caches={}) for _ in range(2))
    with use_context(one):
        with use_context(two):
            assert forward_context() is two
        assert forward_context() is one
    with pytest.raises(AssertionError):
        forward_context()
