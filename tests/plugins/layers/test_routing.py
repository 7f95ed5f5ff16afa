"""The routing rules give the weights and experts that transformers' own routers give."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dovetail_plugins.layers.routing import RoutingRule, route

transformers = pytest.importorskip("transformers")

TOKENS, EXPERTS, PICKED = 64, 12, 3


def filled(module: torch.nn.Module, seed: int = 0) -> Any:
    """Return the module with random parameters and buffers."""
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for tensor in (*module.parameters(), *module.buffers()):
            tensor.copy_(torch.randn(tensor.shape, generator=generator) * 0.5)
    return module.eval()


def inputs(size: int = 16) -> torch.Tensor:
    return torch.randn(TOKENS, size, generator=torch.Generator().manual_seed(1))


def assert_same(
    ours: tuple[torch.Tensor, torch.Tensor], weights: torch.Tensor, experts: torch.Tensor
) -> None:
    """Compare as one weight per expert: the order of the picked ones is nobody's promise."""
    assert ours[0].dtype == torch.float32 and ours[1].dtype == torch.int64
    dense = [
        torch.zeros(TOKENS, EXPERTS).scatter_(1, ids, picked.float())
        for picked, ids in (ours, (weights, experts))
    ]
    torch.testing.assert_close(*dense)


def config(name: str, **fields: Any) -> Any:
    sizes = {"hidden_size": 16, "num_attention_heads": 4, "num_key_value_heads": 2}
    picked = {"num_experts_per_tok": PICKED}
    return getattr(transformers, name)(**{**sizes, **picked, **fields})


@pytest.mark.parametrize("renormalizes", [True, False])
@pytest.mark.parametrize(("groups", "kept"), [(1, 1), (4, 2), (3, 1)])
def test_sigmoids_within_groups(renormalizes: bool, groups: int, kept: int) -> None:
    from transformers.models.glm4_moe.modeling_glm4_moe import Glm4MoeTopkRouter

    settings = config(
        "Glm4MoeConfig",
        n_routed_experts=EXPERTS,
        n_group=groups,
        topk_group=kept,
        norm_topk_prob=renormalizes,
        routed_scaling_factor=2.5,
    )
    router = filled(Glm4MoeTopkRouter(settings))
    rule = RoutingRule(
        num_picked=PICKED,
        scoring="sigmoid",
        renormalizes=renormalizes,
        least_sum=1e-20,
        factor=2.5,
        num_groups=groups,
        num_kept_groups=kept,
        group_score="two_best",
    )
    scores, weights, experts = router(inputs())
    assert_same(route(scores, rule, router.e_score_correction_bias), weights, experts)


@pytest.mark.parametrize("method", ["greedy", "group_limited_greedy"])
def test_softmax_within_groups_of_the_best(method: str) -> None:
    from transformers.models.deepseek_v2.modeling_deepseek_v2 import DeepseekV2TopkRouter

    settings = config(
        "DeepseekV2Config",
        n_routed_experts=EXPERTS,
        n_group=4,
        topk_group=2,
        topk_method=method,
        routed_scaling_factor=16.0,
    )
    rule = RoutingRule(
        num_picked=PICKED,
        factor=16.0,
        num_groups=4 if method == "group_limited_greedy" else 1,
        num_kept_groups=2 if method == "group_limited_greedy" else 1,
    )
    scores, weights, experts = filled(DeepseekV2TopkRouter(settings))(inputs())
    assert_same(route(scores, rule), weights, experts)


def test_softmax_with_a_correction_bias() -> None:
    from transformers.models.ernie4_5_moe.modeling_ernie4_5_moe import Ernie4_5_MoeTopKRouter

    settings = config("Ernie4_5_MoeConfig", moe_num_experts=EXPERTS, moe_k=PICKED)
    router = filled(Ernie4_5_MoeTopKRouter(settings))
    rule = RoutingRule(num_picked=PICKED, renormalizes=True, least_sum=settings.moe_norm_min)
    scores, weights, experts = router(inputs())
    bias = router.moe_statics.e_score_correction_bias.flatten()
    assert_same(route(scores, rule, bias), weights, experts)
    assert not torch.equal(route(scores, rule)[1].sort()[0], experts.sort()[0])


@pytest.mark.parametrize("renormalizes", [True, False])
def test_softmax(renormalizes: bool) -> None:
    from transformers.models.olmoe.modeling_olmoe import OlmoeTopKRouter

    settings = config("OlmoeConfig", num_experts=EXPERTS, norm_topk_prob=renormalizes)
    scores, weights, experts = filled(OlmoeTopKRouter(settings))(inputs())
    rule = RoutingRule(num_picked=PICKED, renormalizes=renormalizes)
    assert_same(route(scores, rule), weights, experts)


def test_a_softmax_of_the_picked_alone_is_that_of_all_renormalized() -> None:
    from transformers.models.granitemoe.modeling_granitemoe import GraniteMoeTopKRouter

    settings = config("GraniteMoeConfig", num_local_experts=EXPERTS)
    scores, weights, experts = filled(GraniteMoeTopKRouter(settings))(inputs())
    assert_same(route(scores, RoutingRule(num_picked=PICKED, renormalizes=True)), weights, experts)


def test_sigmoids_that_weigh_inputs() -> None:
    from transformers.models.llama4.modeling_llama4 import Llama4Router

    settings = config("Llama4TextConfig", num_local_experts=EXPERTS)
    dense, scores = filled(Llama4Router(settings))(inputs())
    rule = RoutingRule(num_picked=PICKED, scoring="sigmoid", weighs_inputs=True)
    weights, experts = route(scores, rule)
    assert_same((weights, experts), *dense.topk(PICKED))


@pytest.mark.parametrize("width", [1.0, 0.02])
def test_sparsemixer(width: float) -> None:
    """Close scores as well, where several are near the best."""
    from transformers.models.phimoe.modeling_phimoe import PhimoeTopKRouter

    settings = config("PhimoeConfig", num_local_experts=EXPERTS, num_experts_per_tok=2)
    router = filled(PhimoeTopKRouter(settings))
    rule = RoutingRule(num_picked=2, scoring="sparsemixer", margin=settings.router_jitter_noise)
    scores, weights, experts = router(inputs() * width + width)
    assert_same(route(scores, rule), weights, experts)
    assert (weights < 0.999).any(), "no two scores were near each other"
