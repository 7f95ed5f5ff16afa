"""FlashAttn: attention by the flash-attn package, version 2 or 3, over a paged cache.

Version 3 (module `flash_attn_interface`) reads blocks of any size; version 2 (`flash_attn`) needs a
multiple of 256 tokens. If both are installed, version 3 is used. Not run on a GPU here: its calls
are checked against the documented signatures.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module, util
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.attention import AttentionBackend, AttentionCall, BatchLayout
from dovetail.interfaces.plugin import Info

if TYPE_CHECKING:
    import torch

SECOND, THIRD = "flash_attn", "flash_attn_interface"
SECOND_BLOCK_TOKENS = 256
DTYPES = ("float16", "bfloat16")
MAX_HEAD_SIZE = 256
HEAD_STEP = 8


def _has(module: str) -> bool:
    return util.find_spec(module) is not None


class FlashAttn(AttentionBackend):
    """flash-attn's kernels for varying lengths, which look keys up in the block table."""

    info = Info(
        summary="the flash-attn package, version 2 or 3, in 16 bits",
        source="https://github.com/Dao-AILab/flash-attention",
        devices=("cuda",),
    )
    capabilities = frozenset({"window", "soft_cap", "non_causal", "alibi", "shared"})
    auto_rank = 2

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        from dovetail_plugins.attention import _alibi, _paged_write

        self._paged, self._alibi = _paged_write, _alibi
        self._is_third = _has(THIRD)
        module = import_module(THIRD if self._is_third else SECOND)
        name = "flash_attn_with_kvcache" if self._is_third else "flash_attn_varlen_func"
        self._call: Callable[..., torch.Tensor] = getattr(module, name)

    @classmethod
    def unavailable_reason(cls) -> str | None:
        """Return why the package cannot be used here, or None. Imports nothing."""
        if _has(THIRD) or _has(SECOND):
            return None
        return 'package "flash_attn" is not installed. Fix: run `pip install flash-attn`.'

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why this backend cannot serve an AttentionQuery."""
        if query is None:
            return []
        if query.device != "cuda":
            return [f"runs on cuda, not on {query.device}"]
        reasons = cls.lacks(query)
        if query.dtype not in DTYPES:
            reasons.append(f"takes {' and '.join(DTYPES)}, not {query.dtype}")
        if query.kv_dtype != query.dtype:
            reasons.append(f"the KV cache must hold {query.dtype}, not {query.kv_dtype}")
        for size in query.head_sizes:
            if size % HEAD_STEP or size > MAX_HEAD_SIZE:
                reasons.append(f"the head size must be a multiple of 8 up to 256, it is {size}")
        if not _has(THIRD) and query.block_tokens % SECOND_BLOCK_TOKENS:
            reasons.append(
                f"version 2 reads blocks of 256 tokens, --block-size is {query.block_tokens}"
            )
        if query.uses_alibi and _has(THIRD):
            reasons.append("ALiBi biases are not supported by version 3, which is installed")
        if query.uses_alibi and query.uses_soft_cap:
            reasons.append("ALiBi biases beside soft caps on scores are not supported")
        return reasons

    def prepare(self, layout: BatchLayout) -> Any:
        """Return the layout, and for version 2 the start of each row's keys if they were
        concatenated."""
        if self._is_third:
            return layout, None
        import torch

        ends = layout.seq_lens.cumsum(0, dtype=torch.int32)
        return layout, torch.nn.functional.pad(ends, (1, 0))

    def forward(self, call: AttentionCall) -> torch.Tensor:
        """Write k and v into the cache, if there are any, then attend. Mutates: cache"""
        assert call.sinks is None, "not among the capabilities"
        self._paged.write(call, call.prepared[0].slots)
        return self._attend(call)

    forward_shared = forward

    def _attend(self, call: AttentionCall) -> torch.Tensor:
        """Attend to the cache. Shapes: -> as q"""
        spec, q, cache = call.spec, call.q, call.cache
        layout, key_start = call.prepared
        rules: dict[str, Any] = {
            "softmax_scale": spec.scale,
            "causal": spec.is_causal,
            "window_size": self._paged.window_sides(spec),
            "softcap": spec.soft_cap or 0.0,
        }
        if self._is_third:
            return self._call(
                q,
                cache[0],
                cache[1],
                cache_seqlens=layout.seq_lens,
                page_table=layout.block_table,
                cu_seqlens_q=layout.query_start,
                max_seqlen_q=layout.max_query_tokens,
                **rules,
            )
        if spec.alibi_slopes is not None:
            rules["alibi_slopes"] = self._alibi.slopes_on(q.device, spec.alibi_slopes)
        return self._call(
            q,
            cache[0],
            cache[1],
            cu_seqlens_q=layout.query_start,
            cu_seqlens_k=key_start,
            max_seqlen_q=layout.max_query_tokens,
            max_seqlen_k=layout.max_seq_tokens,
            block_table=layout.block_table,
            **rules,
        )
