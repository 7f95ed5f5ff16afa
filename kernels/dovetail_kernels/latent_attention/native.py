"""latent_attention on the native CPU library: one call a layer writes its latents and attends.

A Step holds the argument struct of one step's rows, so that a layer's call sets few fields.
"""

from __future__ import annotations

import ctypes

import torch

from dovetail_kernels.cpu.implementation import native_implementation
from dovetail_kernels.op import Arguments
from dovetail_kernels.paged_attention.step import PagedStep

FORMATS = (torch.float32, torch.bfloat16, torch.float16)
CODES = {dtype: code for code, dtype in enumerate(FORMATS)}
MAX_HEADS = 512

_pointer, _int64, _int32, _float = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float


class LatentArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [
        ("q", _pointer),
        ("latent", _pointer),
        ("out", _pointer),
        ("cache", _pointer),
        ("block_table", _pointer),
        ("query_start", _pointer),
        ("seq_lens", _pointer),
        ("slots", _pointer),
        ("picks", _pointer),
        ("sinks", _pointer),
        ("q_stride", _int64),
        ("latent_stride", _int64),
        ("block_stride", _int64),
        ("table_stride", _int64),
        ("rows", _int64),
        ("block_tokens", _int64),
        ("num_picked", _int64),
        ("num_heads", _int32),
        ("latent_size", _int32),
        ("rope_size", _int32),
        ("format", _int32),
        ("scale", _float),
        ("may_round", _int32),
    ]


def reasons_against(cache_dtype: torch.dtype | None, num_heads: int) -> list[str]:
    """Return why the kernel cannot attend a cache of this kind; empty when it can."""
    reasons = []
    if cache_dtype not in CODES:
        names = ", ".join(str(d).removeprefix("torch.") for d in FORMATS)
        reasons.append(f"the cache holds one of {names}")
    if num_heads > MAX_HEADS:
        reasons.append(f"there are up to {MAX_HEADS} heads, not {num_heads}")
    return reasons


class Step(PagedStep):
    """The rows of one step, ready for its layers."""

    kernel, args = "latent_attention", LatentArgs

    def __call__(
        self,
        q: torch.Tensor,
        latent: torch.Tensor | None,
        cache: torch.Tensor,
        scale: float,
        latent_size: int,
        *,
        may_round: bool = False,
        picks: torch.Tensor | None = None,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Write the latents, when given, and attend. Tokens and blocks may be strided.

        `may_round`: with a bfloat16 cache, queries and softmax weights may be rounded to it, which
        is done if this CPU multiplies such pairs. With `picks` a query at position p attends to the
        min(p + 1, K) positions that are named for it, and to no others.

        Shapes: q [T, H, L + R], latent [T, L + R] float32, cache [N, P, L + R], picks [T, K] int32,
        sinks [H] -> [T, H, L]. Mutates: cache
        """
        out = torch.empty(*q.shape[:2], latent_size)
        args = self._args
        args.q, args.q_stride, args.out = q.data_ptr(), q.stride(0), out.data_ptr()
        args.latent = None
        if latent is not None:
            args.latent, args.latent_stride = latent.data_ptr(), latent.stride(0)
        args.cache, args.format = cache.data_ptr(), CODES[cache.dtype]
        args.block_stride = cache.stride(0)
        args.num_heads, args.latent_size = q.shape[1], latent_size
        args.rope_size, args.scale = q.shape[2] - latent_size, scale
        args.may_round = may_round
        args.picks = None
        if picks is not None:
            picks = picks.contiguous()
            args.picks, args.num_picked = picks.data_ptr(), picks.shape[1]
        args.sinks = None
        if sinks is not None:
            sinks = sinks.float().contiguous()
            args.sinks = sinks.data_ptr()
        if self._kernel(self._reference):
            raise MemoryError(f"no memory to attend {len(q)} tokens")
        return out


def _attend(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    latent_size: int,
    may_round: bool = False,
    picks: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the attended latents (see the reference)."""
    step = Step(
        block_table=block_table,
        query_start=query_start,
        seq_lens=seq_lens,
        slots=None,
        block_tokens=cache.shape[1],
    )
    return step(q, None, cache, scale, latent_size, may_round=may_round, picks=picks, sinks=sinks)


def _why_not(arguments: Arguments) -> str | None:
    return "; ".join(reasons_against(arguments["cache"].dtype, arguments["q"].shape[1])) or None


NATIVE = native_implementation(_attend, why_not=_why_not)
