"""Kernels: each op with its definition in torch, its cases, and its implementations.

Knows torch and nothing of dovetail. An op is a folder: docstring with formula and shapes,
`reference.py` (the definition), `cases.py` (one list for correctness, speed and support).
"""

from __future__ import annotations

from importlib import import_module

from dovetail_kernels.op import Case, Implementation, Op

OP_NAMES = ("gemm", "rms_norm", "rotary", "gated_activation", "paged_attention", "cache_write")

__all__ = ["OP_NAMES", "Case", "Implementation", "Op", "all_ops", "load_op"]


def load_op(name: str) -> Op:
    """Return one op. Raises: KeyError when there is none of this name."""
    if name not in OP_NAMES:
        raise KeyError(f"no op {name!r}; there are {', '.join(OP_NAMES)}")
    op = import_module(f"dovetail_kernels.{name}").OP
    assert isinstance(op, Op)
    return op


def all_ops() -> list[Op]:
    """Return every op, in the order of OP_NAMES."""
    return [load_op(name) for name in OP_NAMES]
