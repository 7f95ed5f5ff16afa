"""What processors over lists of token ids share: the range check, and tensors made once per row."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING

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
                fix="use ids from the model's own tokenizer (POST /tokenize shows them)",
            )


def flat_index(
    ids: Sequence[torch.Tensor], indices: Sequence[int]
) -> tuple[torch.Tensor, torch.Tensor]:
    """Return the row index and token id of every entry of `ids`, rows one after the other.

    Shapes: ids: one [n] int64 per row, indices: each row's index -> [sum n] int64 twice
    """
    import torch

    sizes = torch.tensor([len(one) for one in ids], device=ids[0].device)
    rows = torch.tensor(indices, device=ids[0].device).repeat_interleave(sizes)
    return rows, torch.cat(list(ids))
