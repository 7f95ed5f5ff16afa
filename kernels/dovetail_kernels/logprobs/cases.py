"""Cases of logprobs: small, odd and large vocabularies, ties, bans, picked rows, all dtypes."""

from __future__ import annotations

from collections.abc import Callable

import torch

from dovetail_kernels.op import Arguments, Case
from dovetail_kernels.sample.cases import LARGE_VOCAB, logits_of

PERF_TOP = 20


def cases() -> list[Case]:
    """Return the cases that are checked."""
    sizes = ((9, 50, 50), (5, 1000, 7), (4, 4096, 0), (3, 20_000, 20))
    plain = [_case(kind, *size) for size in sizes for kind in ("normal", "ties", "one")]
    narrow = [_case("ties", 4, 3000, 12, dtype=dtype) for dtype in (torch.bfloat16, torch.float16)]
    picked = [_case("normal", 6, 300, 4, picks=True), _case("ties", 6, 300, 4, picks=True)]
    return plain + narrow + picked + [_case("normal", 2, LARGE_VOCAB, 20)]


def small_cases() -> list[Case]:
    """Return the cases that are checked if kernels are interpreted."""
    sizes = ((3, 50, 50), (2, 5000, 9))
    plain = [_case(kind, *size) for size in sizes for kind in ("normal", "ties", "one")]
    narrow = _case("ties", 2, 3000, 5, dtype=torch.bfloat16, picks=True)
    return [*plain, narrow, _case("normal", 1, LARGE_VOCAB, 20)]


def perf_cases() -> list[Case]:
    """Return the cases that are timed."""
    return [
        _case("model", rows, LARGE_VOCAB, num_top, dtype=torch.bfloat16)
        for rows in (1, 32, 256)
        for num_top in (0, 5, PERF_TOP)
    ]


def _case(
    kind: str,
    rows: int,
    vocab: int,
    num_top: int,
    *,
    dtype: torch.dtype = torch.float32,
    picks: bool = False,
) -> Case:
    return Case(
        name=f"{kind}_S{rows}_V{vocab}_n{num_top}{'_picked' if picks else ''}",
        dtype=dtype,
        build=_builder(kind, rows, vocab, num_top, dtype, picks=picks),
        moved_bytes=rows * (vocab * dtype.itemsize + 16 * num_top),
        flops=20 * rows * vocab,
        rtol=0.0,
        atol=0.0,
    )


def _builder(
    kind: str, rows: int, vocab: int, num_top: int, dtype: torch.dtype, *, picks: bool
) -> Callable[[torch.device], Arguments]:
    def build(device: torch.device) -> Arguments:
        logits = logits_of(kind, rows, vocab).to(device, dtype)
        found: Arguments = {
            "logits": logits,
            "tokens": (torch.arange(rows, device=device) * 37 + 1) % vocab,
            "num_top": num_top,
        }
        if picks:
            found["rows"] = torch.arange(rows - 1, 0, -2, device=device)
            found["tokens"] = found["tokens"][: len(found["rows"])]
        return found

    return build
