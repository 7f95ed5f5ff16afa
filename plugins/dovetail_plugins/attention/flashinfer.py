"""FlashInfer: attention by the flashinfer package over a paged cache.

A step is planned once for each kind of layer (window, soft cap, scale), since the package plans on
the host for one. Its ALiBi counts its slopes from the number of heads that it is given, which is
that of a rank, and takes no others: so it is not used. Not run on a GPU here: its calls are checked
against the documented signatures.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from dovetail.interfaces.attention import AttentionBackend, AttentionCall, BatchLayout
from dovetail.interfaces.plugin import Info

if TYPE_CHECKING:
    import torch

DTYPES = ("float16", "bfloat16")
FLOAT8 = ("float8_e4m3fn", "float8_e5m2")
HEAD_SIZES = (64, 128, 256)


class FlashInfer(AttentionBackend):
    """flashinfer's paged prefill, which attends decodes too."""

    info = Info(
        summary="the flashinfer package, in 16 bits, with a KV cache of 16 or 8 bits",
        source="https://docs.flashinfer.ai/api/attention.html",
        requires=("flashinfer",),
        devices=("cuda",),
    )
    capabilities = frozenset({"window", "soft_cap", "non_causal", "shared"})
    auto_rank = 1

    def __init__(self, options: Any) -> None:
        super().__init__(options)
        from dovetail_plugins.attention import _flashinfer_step

        self._step = _flashinfer_step
        self._wrappers = _flashinfer_step.Wrappers(import_module("flashinfer"))

    @classmethod
    def unavailable_reason(cls) -> str | None:
        """Return why the package cannot be used here, or None. Imports nothing."""
        if super().unavailable_reason() is None:
            return None
        return 'package "flashinfer" is not installed. Fix: run `pip install flashinfer-python`.'

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
        if query.kv_dtype not in (query.dtype, *FLOAT8):
            reasons.append(f"a KV cache of {query.kv_dtype} is not supported")
        if query.uses_window and not query.is_causal:
            reasons.append("windows to both sides are not supported")
        for size in query.head_sizes:
            if size not in HEAD_SIZES:
                reasons.append(f"the head size must be 64, 128 or 256, it is {size}")
        return reasons

    def prepare(self, layout: BatchLayout) -> Any:
        """Return the step's blocks in the package's format; nothing is planned yet."""
        return self._wrappers.prepared(layout)

    def forward(self, call: AttentionCall) -> torch.Tensor:
        """Write k and v into the cache, if there are any, then attend. Mutates: cache, prepared"""
        assert call.sinks is None, "not among the capabilities"
        return self._step.forward(call, self._wrappers)

    forward_shared = forward
