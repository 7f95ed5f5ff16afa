"""Drafts of a drafter model: sampled like the request's own tokens, from the most likely ones.

The distribution is cut to a few tokens before a draft is sampled, so that storing it until the
draft is verified takes little memory.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from dovetail.sampling.acceptance import DRAFT_STREAM
from dovetail.sampling.rows import SamplingRows
from dovetail_kernels.sample.definition import uniforms
from dovetail_kernels.sample.draw import draw, probabilities_of
from dovetail_kernels.sample.filters import filter_top

MOST_TOKENS = 64
"""Number of most likely tokens that a draft is sampled from."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SampledTokens:
    """One draft for each of S rows, and the n tokens that it was sampled from. `is_sampled` is
    false for greedy rows, whose draft is the most likely token.

    Shapes: token_ids [S], among [S, n] int64, probabilities [S, n] float32, is_sampled [S] (host)
    """

    token_ids: torch.Tensor
    among: torch.Tensor
    probabilities: torch.Tensor
    is_sampled: np.ndarray


def sample_drafts(
    known: SamplingRows, logits: torch.Tensor, rows: np.ndarray, positions: np.ndarray
) -> SampledTokens:
    """Return a draft for each row with its temperature and filters, but no penalties or processors.

    `positions` are the numbers of the drafted output tokens. The random numbers come from the
    request's seed and are used for nothing else.
    Shapes: logits [S, V], rows, positions [S]
    """
    tables, device = known.tables, logits.device
    factors = tables.inverse_temperature[rows]
    values, among = logits.topk(min(MOST_TOKENS, logits.shape[1]), dim=1)
    shifted = values.float()
    shifted = (shifted - shifted[:, :1]) * torch.from_numpy(factors).to(device).unsqueeze(1)
    filter_top(shifted, tables.top_k[rows], tables.top_p[rows], tables.least[rows])
    lots = torch.from_numpy(uniforms(tables.seed[rows] ^ DRAFT_STREAM, positions)).to(device)
    is_sampled = factors > 0
    picked = draw(shifted, lots).masked_fill_(torch.from_numpy(~is_sampled).to(device), 0)
    return SampledTokens(
        token_ids=among.gather(1, picked.unsqueeze(1)).squeeze(1),
        among=among,
        probabilities=probabilities_of(shifted).float(),
        is_sampled=is_sampled,
    )
