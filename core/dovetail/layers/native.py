"""Selects the implementation of an op that a layer runs, once, when the layer is built.

The platform's own has priority over dovetail's; then come native kernels, then Triton.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import torch

from dovetail.errors import BrokenPlugin, ConfigError
from dovetail.interfaces.model import BuildContext
from dovetail.layers.dtypes import dtype_of
from dovetail.registry.files import import_target
from dovetail_kernels import load_op
from dovetail_kernels.op import Implementation, Op

NATIVE = "native"
TRITON = "triton"


OPS = ("rms_norm", "layer_norm", "qk_rotary", "gated_activation", "moe")
"""The ops that a platform can provide for layers. Matrix products belong to quantization methods,
attention to backends."""


def use_ops(ops: Mapping[str, str]) -> None:
    """Make layers that are built from now on prefer these implementations, op name ->
    "module:attribute", and no others. Raises: ConfigError, BrokenPlugin. Mutates: the ops"""
    unknown = sorted(set(ops) - set(OPS))
    if unknown:
        raise ConfigError(
            f"no layer asks for the op {unknown[0]}.",
            where="ops of the platform",
            fix=f"name {', '.join(OPS)}; products are a quantization method's, attention is an "
            "attention backend's.",
        )
    for name in OPS:
        implementation = import_target(ops[name]) if name in ops else None
        if not isinstance(implementation, Implementation | None):
            raise BrokenPlugin(
                f"{ops[name]} is {type(implementation).__name__}, not an Implementation.",
                where=f"op {name} of the platform",
                fix="see dovetail_kernels.op.",
            )
        load_op(name).preferred = implementation


def _preferred(op: Op, context: BuildContext) -> Callable[..., Any] | None:
    """Return the device's own function for an op, or None if it has none that runs."""
    if op.preferred is None:
        return None
    device, dtype = torch.device(context.device).type, dtype_of(context.model.dtype)
    fits = not op.reasons_against(op.preferred, device, dtype)
    return op.preferred.function if fits else None


def runs_natively(op: Op, context: BuildContext) -> bool:
    """Return whether the op's native implementation supports this model's activations, and the
    device does not have its own."""
    if _preferred(op, context) is not None:
        return False
    return op.runs(NATIVE, torch.device(context.device).type, dtype_of(context.model.dtype))


def fused_kernel(op: Op, context: BuildContext) -> Callable[..., Any] | None:
    """Return the device's own kernel or Triton's, with the signature of the op's reference. None if
    neither runs or fused ops are off."""
    if not context.uses_fused_ops:
        return None
    own = _preferred(op, context)
    if own is not None:
        return own
    device, dtype = torch.device(context.device).type, dtype_of(context.model.dtype)
    return op.pick(device, dtype, name=TRITON) if op.runs(TRITON, device, dtype) else None
