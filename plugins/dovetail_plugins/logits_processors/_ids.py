"""Shared by processors over lists of token ids: the range check, and places in the logits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING

import numpy as np

from dovetail.errors import RequestError

if TYPE_CHECKING:
    import torch


def verify_ids(ids: Iterable[int], vocab_size: int, where: str) -> None:
    """Raises: RequestError naming the first id outside the vocabulary."""
    for token_id in ids:
        if not 0 <= token_id < vocab_size:
            raise RequestError(
                f"token id {token_id} is outside the vocabulary of {vocab_size}.",
                where=where,
                fix="use ids from the model's own tokenizer (POST /tokenize shows them).",
            )


def places(
    ids: Mapping[int, Sequence[int] | np.ndarray], device: torch.device
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return index and token id of every entry, `ids` being each index's; the device is not waited
    for. Shapes: [sum of ids] int64 twice"""
    from dovetail_kernels.sample.seen import on_device

    at = np.repeat(np.array(list(ids), dtype=np.int64), [len(one) for one in ids.values()])
    flat = np.array([token_id for one in ids.values() for token_id in one], dtype=np.int64)
    return on_device(at, device), on_device(flat, device)


def forbid(logits: torch.Tensor, ids: Mapping[int, Sequence[int]]) -> None:
    """Set the logits of each index's ids to -inf. Shapes: logits [S, V]. Mutates: logits"""
    if any(ids.values()):
        logits[places(ids, logits.device)] = float("-inf")
