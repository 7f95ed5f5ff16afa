"""Logprobs: of given tokens with their ranks, and of the n most likely, from raw logits.

The vocabulary is sorted only when all of it is asked for. Values are natural logarithms and always
finite. Knows no row numbers and no requests.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch

from dovetail.interfaces.step import TokenLogprobs

FLOOR = -9999.0
"""What a token of probability 0 (or a logprob below this) is reported as."""


def token_logprobs(
    logits: torch.Tensor, token_ids: Sequence[int], num_top: Sequence[int]
) -> list[TokenLogprobs]:
    """Return each token's logprob, its rank (1: no token is likelier) and its row's top n.

    `num_top` n is 0 for the token alone, -1 for the whole vocabulary.
    Shapes: logits [S, V] float32 with finite row maxima, token_ids [S], num_top [S]
    """
    ids = torch.as_tensor(token_ids, dtype=torch.int64, device=logits.device).unsqueeze(1)
    chosen = logits.gather(1, ids)
    norm = _log_sum_exp(logits)
    ranks = (logits > chosen).sum(dim=1) + 1
    own = (chosen.squeeze(1).double() - norm).clamp_(min=FLOOR, max=0.0)
    tops = _tops(logits, norm, num_top)
    return [
        TokenLogprobs(
            token_id=token_id, logprob=logprob, rank=rank, top_ids=top[0], top_logprobs=top[1]
        )
        for token_id, logprob, rank, top in zip(
            token_ids, own.tolist(), ranks.tolist(), tops, strict=True
        )
    ]


def _log_sum_exp(logits: torch.Tensor) -> torch.Tensor:
    """Return log(sum(exp(logits))). Shapes: [S, V] -> [S] float64"""
    top = logits.amax(dim=1, keepdim=True)
    return (logits - top).exp_().sum(dim=1, dtype=torch.float64).log_().add_(top.squeeze(1))


def _tops(
    logits: torch.Tensor, norm: torch.Tensor, num_top: Sequence[int]
) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
    """Return (ids, logprobs) of each row's n most likely tokens.

    Rows are handled by their own n, so that a neighbour's larger n changes no tie.
    """
    vocab = logits.shape[1]
    sizes = [vocab if n < 0 else min(n, vocab) for n in num_top]
    tops: list[tuple[tuple[int, ...], tuple[float, ...]]] = [((), ())] * len(sizes)
    for size in sorted(set(sizes) - {0}):
        rows = [i for i, n in enumerate(sizes) if n == size]
        part, part_norm = logits, norm
        if len(rows) < len(sizes):
            part, part_norm = logits[rows], norm[rows]
        values, ids = part.topk(size, dim=1)
        logprobs = values.double() - part_norm.unsqueeze(1)
        logprobs = logprobs.clamp_(min=FLOOR, max=0.0)
        for i, row_ids, row_logprobs in zip(rows, ids.tolist(), logprobs.tolist(), strict=True):
            tops[i] = (tuple(row_ids), tuple(row_logprobs))
    return tops
