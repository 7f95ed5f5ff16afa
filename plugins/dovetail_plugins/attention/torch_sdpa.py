"""TorchSdpa: attention by torch's own operators, on any device. The reference backend.

Rows that compute one token are gathered and attended together, the others one by one. Knows no
model and no scheduler; torch is imported when an object is made, so capability checks cost nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dovetail.interfaces.attention import (
    AttentionBackend,
    AttentionCall,
    BatchLayout,
    IndexCall,
    LatentCall,
)
from dovetail.interfaces.plugin import Info

if TYPE_CHECKING:
    import torch

LATENT_DTYPES = ("float32", "float16", "bfloat16", "float64")
KV_DTYPES = (*LATENT_DTYPES, "float8_e4m3fn", "float8_e5m2")


class TorchSdpa(AttentionBackend):
    """scaled_dot_product_attention over keys and values gathered from their blocks."""

    info = Info(
        summary="torch's scaled_dot_product_attention on any device (reference)",
        source="https://docs.pytorch.org/docs/stable/generated/"
        "torch.nn.functional.scaled_dot_product_attention.html",
    )
    capabilities = frozenset(
        {
            "window",
            "soft_cap",
            "sinks",
            "non_causal",
            "lse",
            "position_bias",
            "alibi",
            "chunk",
            "latent",
            "indexed",
            "cross",
            "shared",
        }
    )

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        from dovetail_plugins.attention import _torch_latent, _torch_paged

        self._paged, self._latent = _torch_paged, _torch_latent

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why this backend cannot serve an AttentionQuery."""
        if query is None:
            return []
        reasons = cls.lacks(query)
        if query.kv_dtype not in KV_DTYPES:
            reasons.append(f"a KV cache of {query.kv_dtype} is not supported")
        elif query.uses_latent and query.kv_dtype not in LATENT_DTYPES:
            reasons.append(f"latents in {query.kv_dtype} are not supported")
        return reasons

    def prepare(self, layout: BatchLayout) -> Any:
        """Return the step's rows split into decodes and prefills."""
        return self._paged.PreparedGroup(layout)

    def forward(self, call: AttentionCall) -> torch.Tensor:
        """Write k and v into the cache, if there are any, then attend. Mutates: cache"""
        return self._paged.forward(call)

    forward_biased = forward_shared = forward

    def forward_lse(self, call: AttentionCall) -> tuple[torch.Tensor, torch.Tensor]:
        """Write k and v, then attend to the cache; also return the log-sum-exps of the scores.

        Mutates: cache
        """
        return self._paged.forward_lse(call)

    def forward_cross(self, call: AttentionCall) -> torch.Tensor:
        """Write another sequence's keys and values, then attend to all of it. Mutates: cache"""
        return self._paged.forward(call, is_cross=True)

    def forward_latent(self, call: LatentCall) -> torch.Tensor:
        """Write the latents, then attend to the latents of each row. Mutates: cache"""
        return self._latent.forward_latent(call)

    def forward_picked(self, call: LatentCall) -> torch.Tensor:
        """Write the latents, then attend to those that are picked. Mutates: cache"""
        return self._latent.forward_picked(call)

    def pick(self, call: IndexCall) -> torch.Tensor:
        """Return the positions that an indexer picks for each query."""
        return self._latent.pick(call)

    def layout_of(self, prepared: Any) -> BatchLayout:
        """Return the layout of a prepared step."""
        layout: BatchLayout = prepared.layout
        return layout
