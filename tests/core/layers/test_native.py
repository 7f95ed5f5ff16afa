"""Which implementation a layer runs: fused operators only where they are wanted."""

from __future__ import annotations

from dataclasses import replace

import torch

from dovetail.interfaces.model import BuildContext
from dovetail.layers.native import fused_kernel
from dovetail_kernels.op import Implementation, Op
from dovetail_testing.tiny.transformer import PlainWeights, tiny_run


def test_level_0_has_no_fused_operators() -> None:
    def fused(x: torch.Tensor) -> torch.Tensor:
        return x

    op = Op(
        name="any",
        summary="",
        reference=fused,
        cases=list,
        implementations=[
            Implementation(name="triton", function=fused, devices=("cpu",), dtypes=(torch.float32,))
        ],
    )
    model = tiny_run().model
    context = BuildContext(model=model, quant=PlainWeights(None, model), device="cpu")
    assert fused_kernel(op, context) is fused
    assert fused_kernel(op, replace(context, uses_fused_ops=False)) is None
