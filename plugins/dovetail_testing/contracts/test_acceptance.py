"""Acceptance: chances between 0 and 1 and weights to sample from; if it claims to be exact, both
together give the model's own distribution, whatever the drafts."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dovetail.interfaces.acceptance import EXACT, Acceptance
from dovetail_testing.contract import default_options, requires

VOCAB_SIZE = 12
SHAPES = ("near", "far", "filtered", "sure", "equal")


@pytest.fixture
def acceptance(plugin: Any) -> Acceptance:
    """Return it with its default options."""
    plugin_object: Acceptance = plugin(default_options(plugin))
    return plugin_object


def rows(shape: str) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the model's distribution and the drafts'. Shapes: [V] float64, [V] float32"""
    generator = torch.Generator().manual_seed(SHAPES.index(shape))
    logits = 2.0 * torch.randn(VOCAB_SIZE, generator=generator, dtype=torch.float64)
    noise = torch.randn(VOCAB_SIZE, generator=generator, dtype=torch.float64)
    theirs = {"near": logits + 0.1 * noise, "equal": logits}.get(shape, -2.0 * noise)
    if shape == "filtered":  # top-k here, and something else there
        logits[: VOCAB_SIZE // 2] = -torch.inf
        theirs[VOCAB_SIZE // 3 :: 2] = -torch.inf
    if shape == "sure":
        logits[1:] = -torch.inf
    return logits.softmax(0), theirs.softmax(0).float()


def every_draft(shape: str) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Return the distributions once for each token as the draft. Shapes: [V, V], [V], [V, V]"""
    p, q = rows(shape)
    drafts = torch.arange(VOCAB_SIZE)
    return p.expand(VOCAB_SIZE, -1).contiguous(), drafts, q.expand(VOCAB_SIZE, -1).contiguous()


def outcome(
    acceptance: Acceptance, p: torch.Tensor, drafts: torch.Tensor, q: torch.Tensor | None
) -> torch.Tensor:
    """Return the distribution of the tokens that replace each draft. Shapes: [K, V]"""
    chance = acceptance.chance(p, drafts, q).double()
    left = acceptance.residual(p, drafts, q)
    weight = p if left is None else left.double()
    total = weight.sum(dim=1, keepdim=True)
    instead = torch.where(total > 0, weight / total.where(total > 0, total.new_ones(())), p)
    replaced = instead * (1 - chance).unsqueeze(1)
    return replaced.scatter_add(1, drafts.unsqueeze(1), chance.unsqueeze(1))


class TestAcceptance:
    """Clauses of acceptances."""

    kind = "acceptance"

    @pytest.mark.parametrize("shape", SHAPES)
    def test_chances_are_probabilities(self, acceptance: Acceptance, shape: str) -> None:
        """A chance for each draft, from 0 to 1, whether drafts were sampled or not."""
        p, drafts, q = every_draft(shape)
        for theirs in (q, None):
            chance = acceptance.chance(p, drafts, theirs)
            assert tuple(chance.shape) == (VOCAB_SIZE,)
            assert bool(((chance >= 0) & (chance <= 1)).all())

    @pytest.mark.parametrize("shape", SHAPES)
    def test_nothing_impossible_stands(self, acceptance: Acceptance, shape: str) -> None:
        """Tokens with probability 0 (by a mask or a filter) are neither accepted nor sampled in
        place of a draft."""
        p, drafts, q = every_draft(shape)
        for theirs in (q, None):
            outcomes = outcome(acceptance, p, drafts, theirs)
            assert bool(torch.isfinite(outcomes).all()) and bool((outcomes >= 0).all())
            assert float(outcomes[p == 0].sum()) == 0.0
            assert torch.allclose(outcomes.sum(dim=1), torch.ones(1, dtype=torch.float64))

    def test_leaves_its_input_alone(self, acceptance: Acceptance) -> None:
        """The distributions and the drafts are as they were."""
        given = every_draft("far")
        before = [one.clone() for one in given]
        outcome(acceptance, *given)
        assert all(torch.equal(one, other) for one, other in zip(given, before, strict=True))

    def test_rows_do_not_mix(self, acceptance: Acceptance) -> None:
        """A draft's chance is the same by itself as among others."""
        p, drafts, q = every_draft("far")
        together = outcome(acceptance, p, drafts, q)
        for i in range(VOCAB_SIZE):
            own = slice(i, i + 1)
            assert torch.equal(outcome(acceptance, p[own], drafts[own], q[own])[0], together[i])

    @requires(EXACT)
    @pytest.mark.parametrize("shape", SHAPES)
    def test_keeps_the_distribution(self, acceptance: Acceptance, shape: str) -> None:
        """For drafts distributed as q, the resulting tokens are distributed as p; a draft that was
        not sampled has probability 1 in q."""
        p, drafts, q = every_draft(shape)
        outcomes = outcome(acceptance, p, drafts, q)
        weight = (rows(shape)[1].double() / rows(shape)[1].double().sum()).unsqueeze(1)
        torch.testing.assert_close((outcomes * weight).sum(dim=0), p[0], rtol=1e-5, atol=1e-6)
        torch.testing.assert_close(outcome(acceptance, p, drafts, None), p, rtol=1e-9, atol=1e-9)
