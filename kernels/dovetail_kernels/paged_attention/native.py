"""paged_attention on the native CPU library: one call a layer writes its keys and attends.

A Step holds the argument struct of one step's rows, so that a layer's call sets few fields. Knows
no layer and no model.
"""

from __future__ import annotations

import ctypes
from functools import cache

import torch

from dovetail_kernels.cpu.implementation import native_implementation
from dovetail_kernels.op import Arguments
from dovetail_kernels.paged_attention.layout import CELL_TOKENS, FORMATS, format_of, pack
from dovetail_kernels.paged_attention.step import PagedStep

MAX_HEAD_SIZE = 512
"""Sums of 16-bit by 8-bit products of this many numbers fit 32 bits."""
CODES = {dtype: code for code, dtype in enumerate(FORMATS)}

_pointer, _int64, _int32, _float = ctypes.c_void_p, ctypes.c_int64, ctypes.c_int32, ctypes.c_float


class AttentionArgs(ctypes.Structure):
    """See args.h."""

    _fields_ = [
        ("q", _pointer),
        ("k", _pointer),
        ("v", _pointer),
        ("out", _pointer),
        ("lse", _pointer),
        ("sinks", _pointer),
        ("bias", _pointer),
        ("slopes", _pointer),
        ("cache", _pointer),
        ("block_table", _pointer),
        ("query_start", _pointer),
        ("seq_lens", _pointer),
        ("slots", _pointer),
        ("q_stride", _int64),
        ("k_stride", _int64),
        ("v_stride", _int64),
        ("table_stride", _int64),
        ("rows", _int64),
        ("written", _int64),
        ("block_tokens", _int64),
        ("block_bytes", _int64),
        ("window", _int64),
        ("chunk", _int64),
        ("bias_reach", _int64),
        ("num_heads", _int32),
        ("num_kv_heads", _int32),
        ("head_size", _int32),
        ("format", _int32),
        ("is_causal", _int32),
        ("scale", _float),
        ("soft_cap", _float),
        ("may_round", _int32),
        ("rotates", _int32),
        ("k_scale", _float),
        ("v_scale", _float),
    ]


def reasons_against(kv_dtype: torch.dtype | None, head_size: int, block_tokens: int) -> list[str]:
    """Return why the kernel cannot attend a cache of this kind; empty when it can."""
    reasons = []
    if kv_dtype not in CODES:
        names = ", ".join(str(d).removeprefix("torch.") for d in FORMATS)
        reasons.append(f"the cache holds one of {names}")
    if head_size % 16 or not 0 < head_size <= MAX_HEAD_SIZE:
        reasons.append(
            f"the head size must be a multiple of 16 up to {MAX_HEAD_SIZE}, it is {head_size}"
        )
    if block_tokens % CELL_TOKENS:
        reasons.append(f"a block must be a multiple of {CELL_TOKENS} tokens, it has {block_tokens}")
    return reasons


class Step(PagedStep):
    """The rows of one step, ready for its layers."""

    kernel, args = "paged_attention", AttentionArgs

    def set_rules(
        self,
        *,
        num_heads: int,
        num_kv_heads: int,
        head_size: int,
        scale: float,
        window: int | None = None,
        chunk: int | None = None,
        soft_cap: float | None = None,
        is_causal: bool = True,
        may_round: bool = False,
        rotates: bool = False,
        k_scale: float = 1.0,
        v_scale: float = 1.0,
        alibi_slopes: tuple[float, ...] | None = None,
    ) -> None:
        """Say how the next calls attend. Mutates: self

        `may_round`: with keys in bfloat16 or 8-bit floats, queries and the softmax's weights may
        become bfloat16 too, on machines that multiply such pairs faster. `rotates`: queries and
        keys are rotated alike (rotation.py), so the cache holds rotated keys. `k_scale`, `v_scale`:
        keys and values are divided by them if the cache holds 8-bit floats; other caches have none.
        """
        args = self._args
        args.num_heads, args.num_kv_heads, args.head_size = num_heads, num_kv_heads, head_size
        args.scale, args.is_causal = scale, is_causal
        args.window, args.chunk, args.soft_cap = window or 0, chunk or 0, soft_cap or 0.0
        args.may_round, args.rotates = may_round, rotates
        args.k_scale, args.v_scale = k_scale, v_scale
        args.slopes = None if alibi_slopes is None else ctypes.addressof(_stored(alibi_slopes))

    def __call__(
        self,
        q: torch.Tensor,
        k: torch.Tensor | None,
        v: torch.Tensor | None,
        cache: torch.Tensor,
        sinks: torch.Tensor | None = None,
        lse: torch.Tensor | None = None,
        bias: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Write k and v, when given, and attend. Tokens and blocks of the cache may be strided,
        heads are contiguous. `lse` gets the log-sum-exps of the scores, without sinks. `bias` is
        contiguous. There are as many keys as slots (W), which need not be the queries' own.

        Shapes: q [T, H, D], k and v [W, K, D] float32, cache as `layout.cache_shape`, sinks [H],
        lse [T, H], bias [H, 2 M - 1] float32 -> [T, H, D] float32. Mutates: cache, lse
        """
        out = torch.empty(q.shape)
        args = self._args
        args.q, args.q_stride, args.out = q.data_ptr(), q.stride(0), out.data_ptr()
        if k is not None and v is not None:
            args.k, args.k_stride = k.data_ptr(), k.stride(0)
            args.v, args.v_stride = v.data_ptr(), v.stride(0)
            args.written = len(k)
        else:
            args.k = args.v = None
        args.cache = cache.data_ptr()
        args.format = format_of(cache.dtype, cache.shape[-1], q.shape[-1])
        args.block_bytes = cache.stride(0) * cache.itemsize
        args.sinks = None if sinks is None else sinks.data_ptr()
        args.lse = None if lse is None else lse.data_ptr()
        args.bias = None if bias is None else bias.data_ptr()
        args.bias_reach = 0 if bias is None else (bias.shape[1] + 1) // 2
        if self._kernel(self._reference):
            raise MemoryError(f"no memory to attend {len(q)} tokens")
        return out


@cache
def _stored(slopes: tuple[float, ...]) -> ctypes.Array[ctypes.c_float]:
    """Return slopes in native memory that stays allocated, because recorded calls point to it."""
    return (_float * len(slopes))(*slopes)


def _prepare(arguments: Arguments) -> Arguments:
    """Return the arguments with the cache as the kernel has it."""
    ready = {key: value for key, value in arguments.items() if key != "scales"}
    return {**ready, "cache": pack(arguments["cache"], arguments.get("scales"))}


def _attend(
    q: torch.Tensor,
    cache: torch.Tensor,
    block_table: torch.Tensor,
    query_start: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    window: int | None = None,
    chunk: int | None = None,
    soft_cap: float | None = None,
    is_causal: bool = True,
    sinks: torch.Tensor | None = None,
    may_round: bool = False,
    k_scale: float = 1.0,
    v_scale: float = 1.0,
    bias: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
) -> torch.Tensor:
    """Return the attended values (see the reference) over a packed cache."""
    step = Step(
        block_table=block_table,
        query_start=query_start,
        seq_lens=seq_lens,
        slots=None,
        block_tokens=cache.shape[3],
    )
    step.set_rules(
        num_heads=q.shape[1],
        num_kv_heads=cache.shape[1],
        head_size=q.shape[2],
        scale=scale,
        window=window,
        chunk=chunk,
        soft_cap=soft_cap,
        is_causal=is_causal,
        may_round=may_round,
        k_scale=k_scale,
        v_scale=v_scale,
        alibi_slopes=None if alibi_slopes is None else tuple(alibi_slopes.tolist()),
    )
    return step(q, None, None, cache, sinks, bias=bias)


def _why_not(arguments: Arguments) -> str | None:
    cache = arguments["cache"]
    return "; ".join(reasons_against(cache.dtype, cache.shape[-1], cache.shape[2])) or None


NATIVE = native_implementation(_attend, why_not=_why_not, prepare=_prepare)
