"""TritonPaged: attention by dovetail's own Triton kernels, over keys and values in their blocks.

Rows of one token divide their keys over programs, rows of more are attended in tiles; a row's
numbers do not depend on its neighbours. With TRITON_INTERPRET=1 the kernels run on CPU tensors, to
be checked: then "auto" prefers any other. Knows no model and no scheduler; torch is imported when
an object is made.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.attention import (
    AttentionBackend,
    AttentionCall,
    BatchLayout,
    IndexCall,
    LatentCall,
)
from dovetail.interfaces.plugin import Info
from dovetail_kernels.integer_caches import BITS, CELL_TOKENS, SCALE_BYTES, size_fault

if TYPE_CHECKING:
    import torch

INTERPRETS = os.environ.get("TRITON_INTERPRET") == "1"
DTYPES = ("float32", "bfloat16", "float16")
KV_DTYPES = (*DTYPES, "float8_e4m3fn", "float8_e5m2", *BITS)
MAX_HEAD_SIZE = 256


class TritonPaged(AttentionBackend):
    """Triton kernels: keys are written into their slots, then decodes and prefills attend.

    Scales of an int8 cache end each block.
    """

    info = Info(
        summary="Triton kernels for GPUs: any KV type down to 4 bits",
        source="https://arxiv.org/abs/2307.08691",
        requires=("triton",),
        extra="gpu",
        devices=("cuda", "cpu") if INTERPRETS else ("cuda",),
    )
    capabilities = frozenset(
        {
            *("window", "soft_cap", "sinks", "non_causal", "graphs", "lse", "alibi", "chunk"),
            *("latent", "indexed", "cross", "shared"),
        }
    )
    auto_rank = -1 if INTERPRETS else 10

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        from dovetail_plugins.attention import _triton_step

        self._step = _triton_step

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why this backend cannot serve an AttentionQuery."""
        if query is None:
            return []
        if query.device == "cpu" and not INTERPRETS:
            return ["runs on cuda, not on cpu, where TRITON_INTERPRET=1 interprets it for checks"]
        if query.device not in cls.info.devices:
            return [f"runs on cuda, not on {query.device}"]
        reasons = cls.lacks(query)
        if query.dtype not in DTYPES:
            reasons.append(f"takes {', '.join(DTYPES)} activations, not {query.dtype}")
        if query.kv_dtype not in KV_DTYPES:
            reasons.append(f"a KV cache of {query.kv_dtype} is not supported")
        elif query.uses_latent and query.kv_dtype not in DTYPES:
            reasons.append(f"latents in {query.kv_dtype} are not supported")
        if query.uses_latent:
            return reasons
        for size in query.head_sizes:
            if size > MAX_HEAD_SIZE:
                reasons.append(f"heads have up to {MAX_HEAD_SIZE} numbers, not {size}")
            if query.kv_dtype == "int8" and size % SCALE_BYTES:
                reasons.append(f"int8 needs a head size in multiples of 4, it is {size}")
            reasons += size_fault(query.kv_dtype, size)
        if 4 in BITS.get(query.kv_dtype, ()) and query.block_tokens % CELL_TOKENS:
            reasons.append(
                f"4 bits need --block-size in multiples of {CELL_TOKENS}, not {query.block_tokens}"
            )
        return reasons

    @classmethod
    def kv_axes_of(cls, kv_dtype: str) -> tuple[str, ...]:
        """Return no axes for integers: their scales are all at a block's end."""
        return () if kv_dtype in BITS else cls.kv_axes

    def prepare(self, layout: BatchLayout) -> Any:
        """Return the layout with the sizes that decide which kernels run."""
        return self._step.prepare(layout)

    def forward(self, call: AttentionCall) -> torch.Tensor:
        """Write k and v into the cache, if there are any, then attend. Mutates: cache"""
        return self._step.forward(call)

    forward_cross = forward_shared = forward

    def forward_lse(self, call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
        """Write k and v, then attend to the cache; also return the log-sum-exps of the scores.

        Mutates: cache
        """
        return self._step.forward_lse(call)

    def forward_latent(self, call: LatentCall) -> torch.Tensor:
        """Write the latents, then attend to the latents of each row, or to those picked.

        Mutates: cache
        """
        return self._step.forward_latent(call)

    forward_picked = forward_latent

    def pick(self, call: IndexCall) -> torch.Tensor:
        """Return the positions that an indexer picks for each query."""
        return self._step.pick(call)

    def layout_of(self, prepared: Any) -> BatchLayout:
        """Return the layout of a prepared step."""
        layout: BatchLayout = prepared.layout
        return layout
