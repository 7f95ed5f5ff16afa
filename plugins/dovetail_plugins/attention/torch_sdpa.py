"""TorchSdpa: attention by torch's own operators, on any device. The reference backend.

Rows that compute one token are gathered and attended together, the others one by one. Knows no
model and no scheduler; torch is imported when an object is made, so capability checks cost nothing.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from dovetail.interfaces.attention import (
    AttentionBackend,
    AttentionSpec,
    BatchLayout,
    IndexSpec,
    LatentSpec,
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
        return self._paged.Prepared(layout)

    def forward(
        self,
        spec: AttentionSpec,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cache: torch.Tensor,
        prepared: Any,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Write k and v into the cache, then attend.

        Shapes: q [T, H, D], k and v [T, K, D], cache [2, N, P, K, D], sinks [H] -> [T, H, D]
        Mutates: cache
        """
        return self._paged.forward(spec, q, k, v, cache, prepared, sinks)

    def forward_lse(
        self,
        spec: AttentionSpec,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cache: torch.Tensor,
        prepared: Any,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Write k and v, then attend to the cache; also return the log-sum-exps of the scores.

        Shapes: q [T, H, D], k and v [T, K, D] -> [T, H, D], [T, H] float32. Mutates: cache
        """
        return self._paged.forward_lse(spec, q, k, v, cache, prepared)

    def forward_biased(
        self,
        spec: AttentionSpec,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cache: torch.Tensor,
        prepared: Any,
        bias: torch.Tensor,
    ) -> torch.Tensor:
        """Write k and v, then attend with biases by relative position added to the scores.

        Shapes: q [T, H, D], k and v [T, K, D], bias [H, 2 M - 1] -> [T, H, D]. Mutates: cache
        """
        return self._paged.forward(spec, q, k, v, cache, prepared, bias=bias)

    def forward_cross(
        self,
        spec: AttentionSpec,
        q: torch.Tensor,
        k: torch.Tensor,
        v: torch.Tensor,
        cache: torch.Tensor,
        prepared: Any,
    ) -> torch.Tensor:
        """Write another sequence's keys and values, then attend to all of it.

        Shapes: q [T, H, D], k and v [W, K, D] -> [T, H, D]. Mutates: cache
        """
        return self._paged.forward_cross(spec, q, k, v, cache, prepared)

    def forward_shared(
        self,
        spec: AttentionSpec,
        q: torch.Tensor,
        cache: torch.Tensor,
        prepared: Any,
        sinks: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """Attend to another layer's cache.

        Shapes: q [T, H, D], cache as `kv_shape`, sinks [H] -> [T, H, D]
        """
        return self._paged.forward(spec, q, None, None, cache, prepared, sinks)

    def forward_latent(
        self,
        spec: LatentSpec,
        q: torch.Tensor,
        latent: torch.Tensor,
        cache: torch.Tensor,
        prepared: Any,
    ) -> torch.Tensor:
        """Write the latents, then attend to the latents of each row.

        Shapes: q [T, H, L + R], latent [T, L + R], cache [N, P, L + R] -> [T, H, L]
        Mutates: cache
        """
        return self._latent.forward(spec, q, latent, cache, prepared)

    def pick(
        self,
        spec: IndexSpec,
        q: torch.Tensor,
        weights: torch.Tensor,
        keys: torch.Tensor,
        prepared: Any,
    ) -> torch.Tensor:
        """Return the positions that an indexer picks for each query.

        Shapes: q [T, H, D], weights [T, H], keys [N, P, D] -> [T, K] int32
        """
        return self._latent.pick(spec, q, weights, keys, prepared)

    def forward_picked(
        self,
        spec: LatentSpec,
        q: torch.Tensor,
        latent: torch.Tensor,
        cache: torch.Tensor,
        prepared: Any,
        picks: torch.Tensor,
    ) -> torch.Tensor:
        """Write the latents, then attend to those that are picked.

        Shapes: as `forward_latent`, picks [T, K] -> [T, H, L]. Mutates: cache
        """
        return self._latent.forward_picked(spec, q, latent, cache, prepared, picks)

    def layout_of(self, prepared: Any) -> BatchLayout:
        """Return the layout of a prepared step."""
        layout: BatchLayout = prepared.layout
        return layout
