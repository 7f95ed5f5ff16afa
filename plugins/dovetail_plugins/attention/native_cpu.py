"""NativeCpu: attention by the native CPU library, over keys and values in their blocks.

A row's numbers are the same, bit for bit, by itself or in any batch, whole or in chunks, on any
number of threads. Knows no model and no scheduler; torch is imported when an object is made.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.attention import (
    AttentionBackend,
    AttentionCall,
    BatchLayout,
    IndexCall,
    LatentCall,
)
from dovetail.interfaces.plugin import Info
from dovetail_kernels.integer_caches import BITS, CELL_TOKENS, size_fault

if TYPE_CHECKING:
    import torch

MAX_HEAD_SIZE = 512
LATENT_DTYPES = ("float32", "bfloat16", "float16")
KV_DTYPES = (*LATENT_DTYPES, "float8_e4m3fn", "float8_e5m2", *BITS)


@dataclass(frozen=True, slots=True, kw_only=True)
class NativeCpuOptions:
    """Options of native_cpu."""

    round_products: bool = field(
        default=True,
        metadata={
            "help": "round queries and softmax weights to bfloat16 before their products with a "
            "KV cache in bfloat16 or 8-bit floats, on CPUs that multiply such pairs faster"
        },
    )


class NativeCpu(AttentionBackend):
    """Packed cells of 16 tokens, one native call a layer: it writes keys and values and attends."""

    info = Info(
        summary="native CPU kernel: any KV type down to 4 bits, the same bits in any batch",
        source="https://arxiv.org/abs/2309.06180",
        devices=("cpu",),
    )
    capabilities = frozenset(
        {
            *("window", "soft_cap", "sinks", "non_causal", "bf16_products", "lse"),
            *("position_bias", "alibi", "chunk", "latent", "indexed", "cross", "shared"),
        }
    )
    auto_rank = 10
    kv_axes = ("head", "cell")
    cell_tokens = CELL_TOKENS
    Options = NativeCpuOptions

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        from dovetail_plugins.attention import _native_step

        self._native = _native_step

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why this backend cannot serve an AttentionQuery."""
        if query is None:
            return []
        reasons = cls.lacks(query)
        if query.device != "cpu":
            return [f"runs on cpu, not on {query.device}"]
        if query.dtype != "float32":
            reasons.append(f"takes float32 activations, not {query.dtype}")
        if query.kv_dtype not in KV_DTYPES:
            reasons.append(f"a KV cache of {query.kv_dtype} is not supported")
        if query.uses_latent:
            if query.kv_dtype not in LATENT_DTYPES:
                reasons.append(f"latents in {query.kv_dtype} are not supported")
            return reasons or _missing()
        for size in query.head_sizes:
            if size % 16 or size > MAX_HEAD_SIZE:
                reasons.append(
                    f"the head size must be a multiple of 16 up to {MAX_HEAD_SIZE}, it is {size}"
                )
            reasons += size_fault(query.kv_dtype, size)
        if query.block_tokens % CELL_TOKENS:
            reasons.append(
                f"--block-size must be a multiple of {CELL_TOKENS}, it is {query.block_tokens}"
            )
        return reasons or _missing()

    def kv_shape(
        self, num_blocks: int, block_tokens: int, num_kv_heads: int, head_size: int
    ) -> tuple[int, ...]:
        """Return [N, K, 2, P, D]. The layout inside a block is up to the kernel."""
        return (num_blocks, num_kv_heads, 2, block_tokens, head_size)

    def prepare(self, layout: BatchLayout) -> Any:
        """Return the step's rows as the kernel's argument struct."""
        return self._native.prepare(layout, may_round=self.options.round_products)

    def forward(self, call: AttentionCall) -> torch.Tensor:
        """Write k and v into the cache, if there are any, then attend (see
        `AttentionBackend`). Mutates: cache"""
        return self._native.forward(call)

    forward_biased = forward_cross = forward_shared = forward

    def forward_lse(self, call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
        """Write k and v, then attend to the cache; also return the log-sum-exps of the scores.

        Mutates: cache
        """
        return self._native.forward_lse(call)

    def forward_latent(self, call: LatentCall) -> torch.Tensor:
        """Write the latents, then attend to the latents of each row, or to those picked.

        Mutates: cache
        """
        return self._native.forward_latent(call)

    forward_picked = forward_latent

    def pick(self, call: IndexCall) -> torch.Tensor:
        """Return the positions that an indexer picks for each query."""
        return self._native.pick(call)

    def layout_of(self, prepared: Any) -> BatchLayout:
        """Return the layout of a prepared step."""
        layout: BatchLayout = prepared.layout
        return layout


def _missing() -> list[str]:
    """Return the reason why there is no native library; checked last, because it may have to be
    built."""
    from dovetail_kernels.cpu.library import missing_reason

    reason = missing_reason()
    return [] if reason is None else [reason]
