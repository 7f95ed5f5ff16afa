"""Logprobs: of given tokens with their ranks, and of the n most likely, from logits.

On a CPU the native kernels compute them, elsewhere the op `logprobs`, without waiting: its numbers
are read later. The vocabulary is sorted only if all of it is requested. Among equal logits the
lower id comes first. Values are natural logarithms, or the logits themselves, and always finite.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache

import msgspec
import numpy as np
import torch

from dovetail.interfaces.data.step import TokenLogprobs
from dovetail_kernels.cpu.library import library
from dovetail_kernels.logprobs import OP
from dovetail_kernels.logprobs.reference import HEAD, best_of, floats
from dovetail_kernels.sample.definition import WEIGHT_UNITS
from dovetail_kernels.sample.native import MAX_TOP, Logprobs, can_sample, logprobs_of

FLOOR = -9999.0
"""Reported for a token of probability 0, or a logprob below this."""


def token_logprobs(
    logits: torch.Tensor,
    token_ids: Sequence[int],
    num_top: Sequence[int],
    *,
    uses_kernels: bool = True,
    tells_logits: bool = False,
) -> list[TokenLogprobs]:
    """Return each token's logprob, its rank (1: no token is likelier) and its row's top n.

    `num_top` n is 0 for the token alone, -1 for the whole vocabulary. `tells_logits`: report logits
    instead of logprobs.
    Shapes: logits [S, V] float32 with finite row maxima, token_ids [S], num_top [S]
    """
    sizes = _sizes(num_top, logits.shape[1])
    is_short = max(sizes, default=0) <= MAX_TOP
    if uses_kernels and is_short and can_sample(logits) and library() is not None:
        tokens = np.array(token_ids, dtype=np.int64)
        logprobs = logprobs_of(logits, tokens, np.array(sizes, dtype=np.int64))
        entries = listed(logprobs, range(len(sizes)), token_ids, sizes)
        return _with_logits(entries, logits) if tells_logits else entries
    ids = torch.as_tensor(token_ids, dtype=torch.int64, device=logits.device)
    device_logprobs = tell(logits, ids, num_top)
    return read(
        device_logprobs, device_logprobs.numbers.cpu().numpy(), token_ids, tells_logits=tells_logits
    )


def listed(
    found: Logprobs, indices: Sequence[int], token_ids: Sequence[int], sizes: Sequence[int]
) -> list[TokenLogprobs]:
    """Return kernel results for the rows `indices`, one entry each with its first n tokens.

    Shapes: indices ascending, token_ids and sizes of the same length
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
    """Return the entries with each token's logit. Row i of the logits is entry i's."""
    entries = []
    for row, entry in zip(logits, found, strict=True):
        ids = torch.tensor([entry.token_id, *entry.top_ids], device=logits.device)
        own, *tops = row[ids].clamp(min=FLOOR).tolist()
        entries.append(msgspec.structs.replace(entry, logprob=own, top_logprobs=tuple(tops)))
    return entries


def with_named(
    entry: TokenLogprobs, logits: torch.Tensor, token_ids: Sequence[int], *, tells_logits: bool
) -> TokenLogprobs:
    """Return the entry with the logprobs of these tokens instead of the most likely ones.

    Shapes: logits [V] float32
    """
    ids = torch.tensor(token_ids, device=logits.device)
    scale = 0.0 if tells_logits else float(logits.double().logsumexp(dim=0))
    values = (logits[ids].double() - scale).clamp(min=FLOOR)
    return msgspec.structs.replace(
        entry, top_ids=tuple(token_ids), top_logprobs=tuple(values.tolist())
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ToldLogprobs:
    """Logprobs on their way to the host, and the number of top tokens that each row requested.

    `numbers` are the output of the op `logprobs`, with the maximum number of top tokens of any row.
    """

    numbers: torch.Tensor
    sizes: list[int]


def tell(
    logits: torch.Tensor,
    tokens: torch.Tensor,
    num_top: Sequence[int],
    rows: torch.Tensor | None = None,
) -> ToldLogprobs:
    """Compute logprobs of tokens on the logits' device, without waiting.

    Shapes: logits [R, V], tokens [S] int64, num_top [S] (-1: the whole vocabulary), rows [S] int64:
    the tokens' rows (None: all, in order)
    """
    sizes = _sizes(num_top, logits.shape[1])
    largest = max(sizes, default=0)
    compute = OP.reference if largest > MAX_TOP else _kernel(logits.device.type, logits.dtype)
    return ToldLogprobs(numbers=compute(logits, tokens, largest, rows), sizes=sizes)


def read(
    device_logprobs: ToldLogprobs,
    numbers: np.ndarray,
    token_ids: Sequence[int],
    *,
    tells_logits: bool,
) -> list[TokenLogprobs]:
    """Return the logprobs whose numbers have reached the host. Faulty rows may hold anything.

    Shapes: numbers [S, HEAD + 2 n], token_ids [S]
    """
    size = (numbers.shape[1] - HEAD) // 2
    total, rank = numbers[:, 0], numbers[:, 1]
    best, chosen = best_of(numbers), floats(numbers[:, 3])
    ids, values = numbers[:, HEAD : HEAD + size], floats(numbers[:, HEAD + size :])
    if tells_logits:
        logprob, top_logprobs = np.maximum(chosen, FLOOR), np.maximum(values, FLOOR)
    else:
        with np.errstate(all="ignore"):
            norm = np.log(total * 2.0**-WEIGHT_UNITS) + best
            logprob = np.clip(chosen - norm, FLOOR, 0.0)
            top_logprobs = np.clip(values - norm[:, None], FLOOR, 0.0)
    logprobs = Logprobs(logprob=logprob, rank=rank, top_ids=ids, top_logprobs=top_logprobs)
    return listed(logprobs, range(len(token_ids)), token_ids, device_logprobs.sizes)


def _sizes(num_top: Sequence[int], vocab: int) -> list[int]:
    return [vocab if n < 0 else min(n, vocab) for n in num_top]


@cache
def _kernel(device_type: str, dtype: torch.dtype) -> Callable[..., torch.Tensor]:
    """Return the kernel that computes the numbers on a device."""
    return OP.pick(device_type, dtype)
