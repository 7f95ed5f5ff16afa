"""Logprobs: of given tokens with their ranks, and of the n most likely, from logits.

On a CPU the native kernels do it; the vocabulary is sorted only when all of it is asked for. Among
equal logits the lower id comes first. Values are natural logarithms, or the logits themselves, and
always finite. Knows no row numbers, no requests, and not what was done to the logits before.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import msgspec
import numpy as np
import torch

from dovetail.interfaces.step import TokenLogprobs
from dovetail_kernels.cpu.library import library
from dovetail_kernels.sample.definition import WEIGHT_UNITS, weights
from dovetail_kernels.sample.native import MAX_TOP, Logprobs, can_sample, logprobs_of

FLOOR = -9999.0
"""What a token of probability 0 (or a logprob below this) is reported as."""


def token_logprobs(
    logits: torch.Tensor,
    token_ids: Sequence[int],
    num_top: Sequence[int],
    *,
    uses_kernels: bool = True,
    tells_logits: bool = False,
) -> list[TokenLogprobs]:
    """Return each token's logprob, its rank (1: no token is likelier) and its row's top n.

    `num_top` n is 0 for the token alone, -1 for the whole vocabulary. `tells_logits`: the logits
    stand where logprobs would.
    Shapes: logits [S, V] float32 with finite row maxima, token_ids [S], num_top [S]
    """
    vocab = logits.shape[1]
    sizes = [vocab if n < 0 else min(n, vocab) for n in num_top]
    is_short = max(sizes, default=0) <= MAX_TOP
    if uses_kernels and is_short and can_sample(logits) and library() is not None:
        tokens = np.array(token_ids, dtype=np.int64)
        made = logprobs_of(logits, tokens, np.array(sizes, dtype=np.int64))
        found = listed(made, range(len(sizes)), token_ids, sizes)
    else:
        found = _by_torch(logits, token_ids, sizes)
    return _with_logits(found, logits) if tells_logits else found


def listed(
    found: Logprobs, indices: Sequence[int], token_ids: Sequence[int], sizes: Sequence[int]
) -> list[TokenLogprobs]:
    """Return what kernels wrote into the rows `indices`, one entry each with its first n tokens.

    Shapes: indices rising, token_ids and sizes as long
    """
    end = indices[-1] + 1 if indices else 0
    logprobs, ranks = found.logprob[:end].tolist(), found.rank[:end].tolist()
    ids, values = found.top_ids[:end].tolist(), found.top_logprobs[:end].tolist()
    return [
        TokenLogprobs(
            token_id=token_id,
            logprob=logprobs[i],
            rank=ranks[i],
            top_ids=tuple(ids[i][:size]),
            top_logprobs=tuple(values[i][:size]),
        )
        for i, token_id, size in zip(indices, token_ids, sizes, strict=True)
    ]


def _with_logits(found: Sequence[TokenLogprobs], logits: torch.Tensor) -> list[TokenLogprobs]:
    """Return the entries with each token's own logit. Row i of the logits is entry i's."""
    entries = []
    for row, entry in zip(logits, found, strict=True):
        ids = torch.tensor([entry.token_id, *entry.top_ids], device=logits.device)
        own, *tops = row[ids].clamp(min=FLOOR).tolist()
        entries.append(msgspec.structs.replace(entry, logprob=own, top_logprobs=tuple(tops)))
    return entries


def _by_torch(
    logits: torch.Tensor, token_ids: Sequence[int], sizes: Sequence[int]
) -> list[TokenLogprobs]:
    """Return the same on any device."""
    ids = torch.as_tensor(token_ids, dtype=torch.int64, device=logits.device).unsqueeze(1)
    chosen = logits.gather(1, ids)
    norm = _log_sum_exp(logits)
    ranks = (logits > chosen).sum(dim=1) + 1
    own = (chosen.squeeze(1).double() - norm).clamp_(min=FLOOR, max=0.0)
    tops = _tops(logits, norm, sizes)
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
    total = weights(logits - top).sum(dim=1, dtype=torch.int64)
    return total.double().log_().sub_(WEIGHT_UNITS * math.log(2.0)).add_(top.squeeze(1))


def _tops(
    logits: torch.Tensor, norm: torch.Tensor, sizes: Sequence[int]
) -> list[tuple[tuple[int, ...], tuple[float, ...]]]:
    """Return (ids, logprobs) of each row's n most likely tokens."""
    tops: list[tuple[tuple[int, ...], tuple[float, ...]]] = [((), ())] * len(sizes)
    largest = max(sizes, default=0)
    if largest == 0:
        return tops
    ids = order_keys(logits).topk(largest, dim=1).indices
    logprobs = logits.gather(1, ids).double() - norm.unsqueeze(1)
    logprobs = logprobs.clamp_(min=FLOOR, max=0.0)
    for i, (row_ids, row_logprobs) in enumerate(zip(ids.tolist(), logprobs.tolist(), strict=True)):
        tops[i] = (tuple(row_ids[: sizes[i]]), tuple(row_logprobs[: sizes[i]]))
    return tops


def order_keys(logits: torch.Tensor) -> torch.Tensor:
    """Return numbers that order tokens by logit, equal ones by falling id. Shapes: [S, V] int64"""
    bits = (logits + 0.0).view(torch.int32)  # adding 0 makes -0 equal to 0
    ordered = bits ^ ((bits >> 31) & 0x7FFFFFFF)
    falling = torch.arange(logits.shape[1] - 1, -1, -1, device=logits.device)
    return ordered.long().mul_(1 << 32).add_(falling)
