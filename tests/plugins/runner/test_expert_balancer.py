"""Experts move between ranks by their loads, and what the layers compute stays what it was.

Two threads play two ranks; what they exchange lies in a list.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from threading import Barrier
from typing import Any, cast

import pytest
import torch
from torch import nn

from dovetail import registry
from dovetail.config.config import Config
from dovetail.config.rules.parallel.experts import expert_settings
from dovetail.config.rules.parallel.ranks import rank_spec
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ExpertBalanceSpec, RankSpec, Selection
from dovetail.interfaces.data.step import StepPlan
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.layers.moe.experts import Experts
from dovetail.layers.weights import load_weights
from dovetail.parallel.experts import balanced, balancedness, rank_loads
from dovetail.runner.experts.balancer import ExpertBalancer
from dovetail.runner.step.allocated import Allocated
from dovetail_testing.contract import model_spec
from support.expert_balancers import balancer_of

pytest.importorskip("dovetail_plugins")

LINEAR = "dovetail_plugins.expert_placements:linear"
SIZE, INNER, NUM_EXPERTS = 32, 32, 6
FUSED = {f"{name}_proj": ("gate_up_proj", name) for name in ("gate", "up")}
FILES = Selection(
    kind="load_format",
    name="safetensors",
    target="dovetail_plugins.load_formats.safetensors:Safetensors",
)


def settings(**fields: object) -> ExpertBalanceSpec | None:
    """Return how experts move with these fields of the config."""
    config = Config.from_fields(
        {"tensor_parallel_size": 2, "enable_expert_parallel": True, **fields}
    )
    model = model_spec(hf_config={"num_experts": NUM_EXPERTS, "num_experts_per_tok": 2})
    return expert_settings(
        config.cache, config.parallel, config.origins, model, rank_spec(config.parallel), FILES
    )[1]


def test_flags_reach_the_spec() -> None:
    assert settings(eplb_config={"step_interval": 5}) is None
    assert settings(enable_eplb=True) == ExpertBalanceSpec()
    told = {"step_interval": 5, "window_size": 7, "num_redundant_experts": 2}
    found = settings(enable_eplb=True, eplb_config={**told, "log_balancedness": True})
    assert found == ExpertBalanceSpec(
        interval_steps=5, window_steps=7, num_redundant=2, is_logged=True
    )


@pytest.mark.parametrize(
    ("config", "told"),
    [
        ({"num_redundant_experts": 3}, "6 experts and 3 copies cannot be divided .* 2 ranks"),
        ({"step_interval": 0}, "0 is out of range"),
        ({"speed": 1}, '"speed" is not a setting'),
    ],
)
def test_settings_that_cannot_be_are_told(config: dict[str, int], told: str) -> None:
    with pytest.raises(ConfigError, match=told) as caught:
        settings(enable_eplb=True, eplb_config=config)
    (key,) = config
    assert caught.value.where == f"--eplb-config.{key}"


@pytest.mark.parametrize(
    ("loads", "held", "wanted"),
    [
        ([9, 9, 1, 1], ((0, 1), (2, 3)), {(0, 2), (1, 3)}),
        ([12, 1, 1, 1, 1, 2], ((0, 1, 2), (3, 4, 5)), None),
        ([30, 2, 2, 2], ((0, 1, 2), (3, 0, 1)), None),
        ([0, 0, 0, 0], ((0, 1), (2, 3)), {(0, 1), (2, 3)}),
    ],
)
def test_loads_are_balanced(
    loads: Sequence[int], held: Any, wanted: set[tuple[int, ...]] | None
) -> None:
    found = balanced(loads, held)
    assert {len(part) for part in found} == {len(held[0])}
    assert {expert for part in found for expert in part} == set(range(len(loads)))
    assert max(rank_loads(loads, found)) <= max(rank_loads(loads, held))
    assert balanced(loads, found) == found, "the second time nothing moves"
    if wanted is not None:
        assert {tuple(sorted(part)) for part in found} == wanted


def test_redundant_slots_hold_copies_of_the_busiest_on_ranks_apart() -> None:
    held = ((0, 1, 2, 3), (4, 5, 0, 1))
    found = balanced([1, 1, 1, 1, 50, 20], held)
    assert all({4, 5} <= set(part) for part in found)
    assert balancedness([1, 1, 1, 1, 50, 20], found) == 1.0


class Threads:
    """A communicator of ranks that are threads."""

    def __init__(self, size: int) -> None:
        self.barrier, self.told = Barrier(size, timeout=20), [torch.empty(0)] * size
        self.ranks = [Member(self, rank) for rank in range(size)]


class Member:
    """One thread's calls."""

    device = "cpu"

    def __init__(self, threads: Threads, rank: int) -> None:
        self.threads, self.rank = threads, rank
        self.num_bytes = 0

    def all_gather(self, x: torch.Tensor) -> torch.Tensor:
        """Return what all told."""
        self.threads.told[self.rank] = x.clone()
        self.threads.barrier.wait()
        found = torch.stack(self.threads.told)
        self.threads.barrier.wait()
        return found

    def broadcast(self, x: torch.Tensor, source: int) -> torch.Tensor:
        """Return what one told."""
        self.num_bytes += x.nbytes
        return self.all_gather(x)[source]


def ranks_of(method: str, options: dict[str, Any], spec: ExpertBalanceSpec) -> list[Experts]:
    """Return one rank's whole layer, and the layers of two ranks; all of the same weights."""
    generator = torch.Generator().manual_seed(0)
    shapes = {"gate_proj": (INNER, SIZE), "up_proj": (INNER, SIZE), "down_proj": (SIZE, INNER)}
    tensors = {
        f"x.{expert}.{name}.weight": torch.randn(*shape, generator=generator)
        for expert in range(NUM_EXPERTS)
        for name, shape in shapes.items()
    }
    plugin: Any = registry.load("quantization", method)
    made = []
    model = model_spec(hidden_size=SIZE)
    for rank in (RankSpec(), *(RankSpec(tensor_rank=r, tensor_size=2) for r in (0, 1))):
        context = BuildContext(
            model=model, quant=plugin(plugin.Options(**options), model), device="cpu", rank=rank,
            expert_placement=LINEAR, expert_balance=spec,
        )  # fmt: skip
        layer = Experts(
            context, "x.experts", num_experts=NUM_EXPERTS, size=SIZE, inner=INNER, act="silu"
        )
        with torch.inference_mode():
            load_weights(nn.ModuleDict({"x": layer}), WeightMap(fused=FUSED), tensors.items())
        made.append(layer)
    return made


@pytest.mark.parametrize("redundant", [0, 4])
@pytest.mark.parametrize(
    ("method", "options"),
    [("none", {}), ("int4-plain", {"group": 16}), ("experts_int8", {}), ("bitsandbytes", {})],
)
def test_experts_move_and_answers_stay(
    method: str, options: dict[str, Any], redundant: int, caplog: pytest.LogCaptureFixture
) -> None:
    spec = ExpertBalanceSpec(
        interval_steps=3, window_steps=4, num_redundant=redundant, is_logged=True
    )
    whole, *parts = ranks_of(method, options, spec)
    threads = Threads(2)
    for part, member in zip(parts, threads.ranks, strict=True):
        assert part.slots is not None
        part.slots.group = replace(part.slots.group, communicator=member)  # type: ignore[arg-type]
    balancers = [balancer_of(part, spec) for part in parts]
    generator = torch.Generator().manual_seed(1)
    helds, bounds = [], (0, 2, 2, 4)
    with ThreadPoolExecutor(2) as pool, caplog.at_level(logging.INFO):
        list(pool.map(check, balancers))
        for step in range(13):
            list(pool.map(lambda one: one.before(StepPlan(step_id=1, rows=())), balancers))
            assert parts[0].slots is not None and parts[1].slots is not None
            assert parts[0].slots.held == parts[1].slots.held
            helds.append(parts[0].slots.held)
            x = torch.randn(7, SIZE, generator=generator)
            weights = torch.rand(7, 2, generator=generator)
            first = bounds[step // 4]  # two busy neighbors, others later
            picked = torch.tensor([first, first + 1]).repeat(7, 1)
            picked[0] = torch.randint(NUM_EXPERTS, (2,), generator=generator)
            with torch.inference_mode():
                answer = parts[0](x, weights, picked) + parts[1](x, weights, picked)
                wanted = whole(x, weights, picked)
            torch.testing.assert_close(answer, wanted, rtol=1e-4, atol=1e-4)
    assert helds[0] == helds[2] != helds[3], "they move after three steps, not before"
    assert len(set(helds)) >= 3, "they move again when others are busy"
    assert all(len(set(part)) > 1 for part in helds[-1])
    assert len([r for r in caplog.records if "experts: balance" in r.message]) == 4


def test_experts_that_are_stored_in_different_ways_are_told_at_the_start() -> None:
    """Within one rank, and between two."""
    spec = ExpertBalanceSpec()
    layers = [
        ranks_of("int4-plain", {"group": group}, spec)[1 + rank]
        for rank, group in enumerate((16, 8))
    ]
    threads = Threads(2)
    for layer, member in zip(layers, threads.ranks, strict=True):
        assert layer.slots is not None
        layer.slots.group = replace(layer.slots.group, communicator=member)  # type: ignore[arg-type]
    balancers = [balancer_of(layer, spec) for layer in layers]
    assert_told(balancers)
    first, second = (layer._matrices for layer in layers)
    mixed = [*first["down_proj"][:-1], second["down_proj"][0]]
    layers[1]._matrices = {**first, "down_proj": mixed}
    assert_told(balancers)
    layers[1]._matrices = first
    with ThreadPoolExecutor(2) as pool:
        list(pool.map(check, balancers))


def check(balancer: ExpertBalancer) -> None:
    balancer.allocate(cast(Allocated, None))


def assert_told(balancers: Sequence[ExpertBalancer]) -> None:
    with ThreadPoolExecutor(2) as pool:
        for told in [pool.submit(check, one) for one in balancers]:
            with pytest.raises(ConfigError, match="experts of one layer are stored in different"):
                told.result()


def test_layers_that_hold_parts_do_not_move(caplog: pytest.LogCaptureFixture) -> None:
    spec = ExpertBalanceSpec()
    whole, part, _ = ranks_of("none", {}, spec)
    assert not balancer_of(whole, spec)._layers
    assert "has no layers for it" in caplog.text
    assert not balancer_of(part, None)._layers
    assert balancer_of(part, spec)._layers
