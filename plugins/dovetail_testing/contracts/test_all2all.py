"""All2All: every token gets what its experts make of it, whatever rank holds them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from dovetail.interfaces.all2all import All2All
from dovetail_testing.contract import default_options
from dovetail_testing.thread_ranks import ThreadRanks

SIZE, SLOTS, PICKED = 6, 3, 2


@dataclass(frozen=True, slots=True)
class RankTokens:
    """One rank's tokens."""

    x: torch.Tensor
    weights: torch.Tensor
    places: torch.Tensor


def given(
    num_ranks: int, num_tokens: int, seed: int, dtype: torch.dtype = torch.float32
) -> RankTokens:
    """Return tokens; some of their picks are experts that no rank of the group holds."""
    generator = torch.Generator().manual_seed(seed)
    places = torch.rand(num_tokens, num_ranks * SLOTS + 1, generator=generator).argsort(1)
    return RankTokens(
        x=torch.randn(num_tokens, SIZE, generator=generator).to(dtype),
        weights=torch.rand(num_tokens, PICKED, generator=generator),
        places=places[:, :PICKED].contiguous() - 1,
    )


def expert(x: torch.Tensor, place: int) -> torch.Tensor:
    """Return the output of the expert in a place."""
    return torch.tanh(x * (place + 1)) + place


def wanted(one: RankTokens) -> torch.Tensor:
    """Return a rank's outputs as if it held all experts. Shapes: [T, E]"""
    out = torch.zeros(one.x.shape)
    for token, (weights, places) in enumerate(zip(one.weights, one.places.tolist(), strict=True)):
        for weight, place in zip(weights, places, strict=True):
            if place >= 0:
                out[token] += weight * expert(one.x[token].float(), place)
    return out


class Rank:
    """One rank of a plugin, with its own experts."""

    def __init__(self, plugin: Any, group: Any) -> None:
        self.group = group
        self.made: All2All = plugin(default_options(plugin), group)

    def compute(self, x: torch.Tensor, weights: torch.Tensor, slots: torch.Tensor) -> torch.Tensor:
        """Return the weighted sums of this rank's experts."""
        assert weights.dtype == torch.float32 and slots.dtype == torch.int64
        assert len(x) == len(weights) == len(slots), "a row for each token"
        assert bool(((slots >= -1) & (slots < SLOTS)).all()), "slots are those of this rank"
        places = torch.where(slots < 0, -1, slots + self.group.rank * SLOTS)
        return wanted(RankTokens(x, weights, places)).to(x.dtype)

    def exchange(self, one: RankTokens) -> torch.Tensor:
        """Return what comes back for a rank's tokens."""
        return self.made.exchange(one.x, one.weights, one.places, SLOTS, self.compute)


def run(plugin: Any, steps: Sequence[Sequence[int]], *, layers: int = 1, **changes: Any) -> None:
    """Check what all ranks get in some steps; `steps[i][r]` are the tokens of rank r in step i."""
    num_ranks = len(steps[0])
    with ThreadRanks(num_ranks) as ranks:
        parts = [Rank(plugin, member) for member in ranks.members]

        def work(rank: int) -> None:
            for number, tokens in enumerate(steps):
                parts[rank].made.begin_step(tokens[rank])
                for layer in range(layers):
                    seed = 100 * number + 10 * layer + rank
                    one = given(num_ranks, tokens[rank], seed, **changes)
                    originals = [one.x.clone(), one.weights.clone(), one.places.clone()]
                    out = parts[rank].exchange(one)
                    assert out.shape == one.x.shape and out.dtype == one.x.dtype
                    tolerance = 1e-5 if one.x.dtype == torch.float32 else 0.1
                    torch.testing.assert_close(
                        out.float(), wanted(one), rtol=tolerance, atol=tolerance
                    )
                    for tensor, before in zip(
                        (one.x, one.weights, one.places), originals, strict=True
                    ):
                        assert torch.equal(tensor, before), "what was given is left as it was"

        ranks.run(work)


class TestAll2All:
    """Clauses of exchanges. The ranks are threads; their experts are elementwise functions."""

    kind = "all2all"

    @pytest.mark.parametrize("tokens", [(1,), (4, 4), (5, 5, 5)], ids=str)
    def test_equals_one_rank(self, plugin: Any, tokens: Sequence[int]) -> None:
        """A token gets the weighted sum of its experts, as if all were on its rank."""
        run(plugin, [tokens])

    @pytest.mark.parametrize("tokens", [(3, 1), (0, 5), (7, 0, 2)], ids=str)
    def test_ranks_may_have_different_tokens(self, plugin: Any, tokens: Sequence[int]) -> None:
        """Ranks have as many tokens as they have; one without any helps the others."""
        run(plugin, [tokens])

    def test_nobody_may_have_tokens(self, plugin: Any) -> None:
        """A step without any token ends, and steps with tokens follow."""
        run(plugin, [(0, 0), (2, 1)])

    def test_steps_and_layers_do_not_mix(self, plugin: Any) -> None:
        """Many steps of changing sizes, of several layers each."""
        run(plugin, [(step % 4, (step * 7) % 5) for step in range(20)], layers=3)

    def test_keeps_the_type(self, plugin: Any) -> None:
        """Tokens of 16 bits come back in 16 bits."""
        run(plugin, [(3, 2)], dtype=torch.bfloat16)
