"""Kernels: each op with its definition in torch, its cases, and its implementations.

Knows torch and nothing of dovetail; torch itself is imported with the first op. An op is a folder:
docstring with formula and shapes, `reference.py` (the definition), `cases.py` (one list for
correctness, speed and support).
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from dovetail_kernels.op import Op

OP_NAMES = (
    "gemm",
    "moe",
    "route",
    "rms_norm",
    "layer_norm",
    "rotary",
    "qk_rotary",
    "embedding",
    "gated_activation",
    "low_rank",
    "scaled_copy",
    "ssd",
    "gated_delta",
    "paged_attention",
    "latent_attention",
    "index_picks",
    "block_picks",
    "head_products",
    "cache_write",
    "short_conv",
    "selective_scan",
    "wkv",
    "gated_norm",
    "output_gate",
    "product",
    "token_mask",
    "bit_fields",
    "k_scales",
    "checksum",
    "nan_check",
    "group_fit",
    "sample",
    "logprobs",
)

__all__ = ["OP_NAMES", "all_ops", "load_op"]


def load_op(name: str) -> Op:
    """Return one op by its name here, or another package's as "module:attribute".

    Raises: KeyError when there is none of this name.
    """
    module, _, attribute = name.partition(":")
    if not attribute and name not in OP_NAMES:
        known = ", ".join(OP_NAMES)
        raise KeyError(f"no op {name!r}; there are {known}, and others as module:attribute")
    op: Op = getattr(
        import_module(module if attribute else f"dovetail_kernels.{name}"), attribute or "OP"
    )
    return op


def all_ops() -> list[Op]:
    """Return every op, in the order of OP_NAMES."""
    return [load_op(name) for name in OP_NAMES]
