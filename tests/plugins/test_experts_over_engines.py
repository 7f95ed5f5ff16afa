"""Layers whose experts are divided over engines compute what one rank with all experts does.

Threads play the ranks; what they exchange lies in a list.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest
import torch
from torch import nn

from dovetail import registry
from dovetail.interfaces.data.spec import ExpertBalanceSpec, RankSpec
from dovetail.interfaces.data.step import StepPlan
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.layers.moe.experts import Experts
from dovetail.layers.weights import load_weights
from dovetail_testing.contract import model_spec
from dovetail_testing.ranks import ODD_AND_EVEN
from dovetail_testing.thread_ranks import ThreadRanks
from dovetail_testing.tiny.transformer import PlainWeights
from support.expert_balancers import balancer_of

SIZE, INNER, NUM_EXPERTS, PICKED = 16, 12, 8, 3
FUSED = {f"{name}_proj": ("gate_up_proj", name) for name in ("gate", "up")}
SPEC = model_spec(hidden_size=SIZE)
BACKENDS = ("all_to_all", "allgather_reducescatter")


def layer_of(rank: RankSpec, balance: ExpertBalanceSpec | None = None) -> Experts:
    """Return one rank's layer; all ranks' have the same weights."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"gate_proj": (INNER, SIZE), "up_proj": (INNER, SIZE), "down_proj": (SIZE, INNER)}
    tensors = {
        f"x.{expert}.{name}.weight": torch.randn(*shape, generator=generator) / 4
        for expert in range(NUM_EXPERTS)
        for name, shape in shapes.items()
    }
    context = BuildContext(
        model=SPEC, quant=PlainWeights(None, SPEC), device="cpu", rank=rank,
        expert_placement=ODD_AND_EVEN, expert_balance=balance,
    )  # fmt: skip
    made = Experts(
        context, "x.experts", num_experts=NUM_EXPERTS, size=SIZE, inner=INNER, act="silu"
    )
    load_weights(nn.ModuleDict({"x": made}), WeightMap(fused=FUSED), tensors.items())
    return made


def asked(
    seed: int, num_tokens: int, busy: int = 0
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return tokens, and their picks: `busy` and the next on its rank before all others."""
    generator = torch.Generator().manual_seed(seed)
    likely = torch.rand(num_tokens, NUM_EXPERTS, generator=generator)
    likely[:, [busy, busy + 2]] += 1
    return (
        torch.randn(num_tokens, SIZE, generator=generator),
        torch.rand(num_tokens, PICKED, generator=generator),
        likely.topk(PICKED).indices,
    )


def joined(layers: list[list[Experts]], backend: str, columns: list[ThreadRanks]) -> None:
    """Let the layers [engine][tensor rank] exchange tokens within their columns."""
    plugin: Any = registry.load("all2all", backend)
    for engine, ranks in enumerate(layers):
        for number, layer in enumerate(ranks):
            member = columns[number].members[engine]
            assert layer.slots is not None
            layer.slots.column = replace(layer.slots.column, communicator=member)
            layer.slots.exchange = plugin(None, member)


@pytest.mark.parametrize("tensor_size", [1, 2])
@pytest.mark.parametrize("backend", BACKENDS)
def test_each_engine_gets_what_one_rank_makes_of_its_tokens(backend: str, tensor_size: int) -> None:
    """Ranks of an engine add up what comes back in their columns. One engine has no tokens."""
    whole = layer_of(RankSpec())
    layers = [
        [
            layer_of(RankSpec(tensor_rank=t, tensor_size=tensor_size, data_rank=d, data_size=2))
            for t in range(tensor_size)
        ]
        for d in range(2)
    ]
    assert {expert for ranks in layers for one in ranks for expert in one.loaded} == set(range(8))
    columns = [ThreadRanks(2) for _ in range(tensor_size)]
    joined(layers, backend, columns)
    for first, second in ((5, 3), (0, 4), (1, 0)):
        tokens = [asked(1, first), asked(2, second)]
        parts = []
        for number, column in enumerate(columns):

            def work(engine: int, number: int = number, tokens: Any = tokens) -> torch.Tensor:
                layer = layers[engine][number]
                assert layer.slots is not None and layer.slots.exchange is not None
                layer.slots.exchange.begin_step(len(tokens[engine][0]))
                if not len(tokens[engine][0]):
                    layer.help_others(torch.zeros(0, SIZE))
                    return torch.zeros(0, SIZE)
                return layer(*tokens[engine])

            parts.append(column.run(work))
        for engine, one in enumerate(tokens):
            found = torch.stack([part[engine] for part in parts]).sum(0)
            wanted = whole(*one) if len(one[0]) else torch.zeros(0, SIZE)
            torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)
    for column in columns:
        column.__exit__(None, None, None)


@pytest.mark.parametrize("backend", BACKENDS)
def test_experts_move_between_engines_by_the_loads_of_all(backend: str) -> None:
    balance = ExpertBalanceSpec(interval_steps=3, window_steps=3, num_redundant=2)
    whole = layer_of(RankSpec())
    layers = [layer_of(RankSpec(data_rank=d, data_size=2), balance) for d in range(2)]
    with ThreadRanks(2) as ranks:
        joined([[layer] for layer in layers], backend, [ranks])
        for layer in layers:
            assert layer.slots is not None
            layer.slots.group = layer.slots.column
        balancers = [balancer_of(layer, balance) for layer in layers]
        helds = []

        def work(engine: int) -> None:
            slots = layers[engine].slots
            assert slots is not None and slots.exchange is not None
            for step in range(10):
                balancers[engine].before(StepPlan(step_id=step, rows=()))
                if engine == 0:
                    helds.append(slots.held)
                # The second engine has the most tokens, which pick two experts of one rank.
                num_tokens = 12 * engine if step % 4 else 3
                slots.exchange.begin_step(num_tokens)
                if not num_tokens:
                    layers[engine].help_others(torch.zeros(0, SIZE))
                    continue
                one = asked(10 * step + engine, num_tokens, busy=step // 4)
                torch.testing.assert_close(layers[engine](*one), whole(*one), rtol=1e-5, atol=1e-5)

        ranks.run(work)
    assert layers[0].slots is not None and layers[1].slots is not None
    assert layers[0].slots.held == layers[1].slots.held
    assert helds[0] == helds[2] != helds[3]
