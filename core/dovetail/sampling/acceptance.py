"""Acceptance of drafts in a step's draws: random numbers and residuals for an Acceptance plugin.

Other drafts are decided by the draw itself: a token is drawn as without drafts, and the draft is
accepted if it is that token. `runner.verify` handles the batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from dovetail.interfaces.acceptance import Acceptance
from dovetail_kernels.sample.definition import uniforms
from dovetail_kernels.sample.draw import draw_weighted, probabilities_of

ACCEPTANCE_STREAM = np.uint64(0xA0761D6478BD642F)
DRAFT_STREAM = np.uint64(0xE7037ED1A0B428DB)
"""Mixed into a request's seed: the random numbers for accepting drafts, and those for a drafter
that samples the token of an output position. Both are independent of the draws' numbers; otherwise
answers would be biased towards drafts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposals:
    """Drafts that an Acceptance decides on: ascending `indices` into the step's rows, one token
    each, and the distributions they were sampled from (None: they were not sampled).

    Shapes: indices, token_ids [K] int64; probabilities [K, V]
    """

    indices: np.ndarray
    token_ids: np.ndarray
    probabilities: torch.Tensor | None = None

    def among(self, is_chosen: np.ndarray) -> Proposals | None:
        """Return the proposals for the chosen rows of the step. Shapes: is_chosen [S] bool"""
        is_kept = is_chosen[self.indices]
        if is_kept.all():
            return self
        chosen = np.flatnonzero(is_kept)
        if not chosen.size:
            return None
        q = self.probabilities
        return Proposals(
            indices=self.indices[chosen],
            token_ids=self.token_ids[chosen],
            probabilities=None if q is None else q[torch.from_numpy(chosen).to(q.device)],
        )


def settle(
    acceptance: Acceptance,
    shifted: torch.Tensor,
    proposals: Proposals,
    drawn: torch.Tensor,
    seeds: np.ndarray,
    positions: np.ndarray,
) -> torch.Tensor:
    """Return the token of each proposal's row: the draft or another one. `drawn` are the tokens
    drawn without drafts.

    Shapes: shifted [K, V] float32, no NaN, row maximum 0; drawn [K] int64, seeds [K] uint64,
    positions [K] -> [K] int64
    """
    device = shifted.device
    drafts, q = torch.from_numpy(proposals.token_ids).to(device), proposals.probabilities
    p = probabilities_of(shifted)
    chance = acceptance.chance(p, drafts, q)
    lots = torch.from_numpy(uniforms(seeds ^ ACCEPTANCE_STREAM, positions)).to(device)
    is_accepted = lots < chance
    tokens = torch.where(is_accepted, drafts, drawn)
    rejected = (~is_accepted).nonzero().squeeze(1)
    if not len(rejected):
        return tokens
    left = acceptance.residual(p[rejected], drafts[rejected], None if q is None else q[rejected])
    if left is not None:
        own = rejected.cpu().numpy()
        uniform = torch.from_numpy(uniforms(seeds[own], positions[own])).to(device)
        tokens[rejected] = draw_weighted(left, uniform, tokens[rejected])
    return tokens


def grouped(
    indices: Sequence[int], token_ids: Sequence[int], sampled: Sequence[torch.Tensor | None]
) -> tuple[Proposals, ...]:
    """Return proposals in one group of sampled drafts, and one of all others.

    Shapes: indices, token_ids and sampled K, each of the latter [V] or None
    """
    groups = []
    for is_sampled in (True, False):
        own = [i for i, q in enumerate(sampled) if (q is not None) == is_sampled]
        if not own:
            continue
        tables = [q for q in sampled if q is not None]
        groups.append(
            Proposals(
                indices=np.array([indices[i] for i in own], dtype=np.int64),
                token_ids=np.array([token_ids[i] for i in own], dtype=np.int64),
                probabilities=torch.stack(tables) if is_sampled else None,
            )
        )
    return tuple(groups)
