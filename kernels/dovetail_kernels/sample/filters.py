"""Filters: min-p, top-k and top-p, as a threshold per row, without sorting the vocabulary.

A threshold includes every token that ties with the last one, so the outcome does not depend on how
a sort orders equal logits. Sources: Holtzman et al., "The curious case of neural text
degeneration", 2020 (top-p); Nguyen et al., "Turning up the heat: min-p sampling", 2024. This is the
path for devices without native kernels; it selects the same tokens.
"""

from __future__ import annotations

from collections.abc import Set

import numpy as np
import torch

from dovetail_kernels.sample.definition import goal_of, weights
from dovetail_kernels.sample.few import FewLeft, largest
from dovetail_kernels.sample.native import Tables

PROBE_TOKENS = 256
"""Number of largest logits that top-p looks at before it sorts the whole row."""


def filter_top(
    logits: torch.Tensor, top_k: np.ndarray, top_p: np.ndarray, log_min_p: np.ndarray
) -> None:
    """Set to -inf all tokens but min-p's, then all but the top-k, then all but the top-p nucleus.

    Shapes: logits [S, V] float32, row maximum finite; top_k [S] int64 (0: off), top_p [S] float64
    (1: off), least [S] float32 the logarithm of min-p (-inf: off). The nucleus is the smallest set
    of most likely tokens whose share of the remaining mass reaches top_p.
    Mutates: logits
    """
    few = FewLeft.of(logits)
    if few is None:
        _filter_top(logits, top_k, top_p, log_min_p)
        return
    _filter_top(few.logits, top_k, top_p, log_min_p)
    few.put_back(few.logits)


def _filter_top(
    logits: torch.Tensor, top_k: np.ndarray, top_p: np.ndarray, log_min_p: np.ndarray
) -> None:
    vocab = logits.shape[1]
    if np.isfinite(log_min_p).any():
        bound = logits.amax(dim=1) + torch.from_numpy(log_min_p).to(logits.device)
        logits.masked_fill_(logits < bound.unsqueeze(1), -torch.inf)
    limit = np.where((top_k <= 0) | (top_k > vocab), vocab, top_k)
    if (limit == vocab).all() and (top_p >= 1.0).all():
        return
    probe = _probe_tokens(limit, vocab)
    threshold, is_found = _thresholds(logits, limit, top_p, probe)
    rest = np.flatnonzero(~is_found)
    if rest.size:
        index = torch.from_numpy(rest).to(logits.device)
        threshold[index], _ = _thresholds(logits[index], limit[rest], top_p[rest], vocab)
    logits.masked_fill_(logits < threshold.unsqueeze(1), -torch.inf)


def filter_rows(logits: torch.Tensor, tables: Tables, rows: np.ndarray, names: Set[str]) -> None:
    """Set to -inf what the filters "min_p", "top_k" and "top_p" in `names` remove from rows.

    Shapes: logits [S, V] as in `filter_top`, rows [S]. Mutates: logits
    """
    if names:
        none = np.zeros(len(rows))
        top_k = tables.top_k[rows] if "top_k" in names else none.astype(np.int64)
        top_p = tables.top_p[rows] if "top_p" in names else none + 1.0
        min_p = tables.least[rows] if "min_p" in names else none.astype(np.float32) - np.inf
        filter_top(logits, top_k, top_p, min_p)


def _probe_tokens(limit: np.ndarray, vocab: int) -> int:
    """Return the number of largest logits to look at first."""
    is_limited = limit < vocab
    largest = int(limit[is_limited].max(initial=1))
    return min(vocab, largest if is_limited.all() else max(largest, PROBE_TOKENS))


def _thresholds(
    logits: torch.Tensor, limit: np.ndarray, top_p: np.ndarray, probe: int
) -> tuple[torch.Tensor, np.ndarray]:
    """Return each row's smallest remaining logit, and whether `probe` tokens sufficed to find it.

    Shapes: logits [S, V], limit [S], top_p [S] -> [S] float32, [S] bool (host)
    """
    vocab, device = logits.shape[1], logits.device
    is_limited = limit < vocab
    values = largest(logits, probe)
    limits = torch.from_numpy(limit).to(device)
    weight = weights(values - values[:, :1]).long()
    weight.masked_fill_(torch.arange(probe, device=device) >= limits.unsqueeze(1), 0)
    cumulative = weight.cumsum(dim=1)
    total = cumulative[:, -1]
    if not is_limited.all():
        mass = weights(logits - values[:, :1]).sum(dim=1, dtype=torch.int64)
        total = torch.where(limits < vocab, total, mass)
    reached = cumulative >= goal_of(total, torch.from_numpy(top_p).to(device)).unsqueeze(1)
    uses_p = top_p < 1.0
    last = torch.where(
        torch.from_numpy(uses_p).to(device),
        reached.int().argmax(dim=1),
        limits.clamp(max=probe) - 1,
    )
    threshold = values.gather(1, last.unsqueeze(1)).squeeze(1)
    is_off = ~uses_p & ~is_limited
    if is_off.any():
        threshold.masked_fill_(torch.from_numpy(is_off).to(device), -torch.inf)
    if is_limited.all() or probe == vocab:
        return threshold, np.ones(len(limit), dtype=bool)
    return threshold, is_off | is_limited | reached[:, -1].cpu().numpy()
