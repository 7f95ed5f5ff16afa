"""Patches against torch's convolutions."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.layers.weights import load_weights
from dovetail_kernels.gemm.matrix import multiplies_pairs
from dovetail_plugins.layers.patches import Patches, is_of_patches
from dovetail_testing.tiny.transformer import PlainWeights, tiny_run

CASES: list[tuple[Any, tuple[int, ...]]] = [
    (lambda: nn.Conv2d(3, 32, 4, 4), (2, 3, 12, 8)),
    (lambda: nn.Conv2d(3, 32, 4, 4, bias=False, padding="valid"), (1, 3, 13, 11)),
    (lambda: nn.Conv2d(1, 20, (2, 3), (2, 3)), (1, 1, 4, 6)),
    (lambda: nn.Conv3d(3, 32, (2, 4, 4), (2, 4, 4), bias=False), (5, 3, 2, 4, 4)),
    (lambda: nn.Conv3d(3, 32, (2, 4, 4), (2, 4, 4)), (1, 3, 5, 8, 12)),
    (lambda: nn.Conv1d(4, 16, 3, 3), (2, 4, 10)),
    (lambda: nn.Conv2d(4, 16, 1, 1), (1, 4, 5, 6)),
]


def context(weight_dtype: str = "float32") -> BuildContext:
    model = msgspec.structs.replace(tiny_run().model, weight_dtype=weight_dtype)
    return BuildContext(model=model, quant=PlainWeights(None, model), device="cpu")


def loaded(conv: nn.Module, weight_dtype: str = "float32") -> Patches:
    patches = Patches(context(weight_dtype), "patches", conv)
    tensors = [(name, value.detach()) for name, value in conv.named_parameters()]
    load_weights(patches, WeightMap(), tensors)
    return patches


@pytest.mark.parametrize(("build", "shape"), CASES)
def test_patches_are_the_convolution(build: Any, shape: tuple[int, ...]) -> None:
    torch.manual_seed(0)
    conv = build()
    assert is_of_patches(conv)
    x = torch.randn(shape)
    with torch.inference_mode():
        wanted, found = conv(x), loaded(conv)(x)
    assert found.shape == wanted.shape
    torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-5)


def test_weights_stay_in_sixteen_bits() -> None:
    torch.manual_seed(0)
    conv = nn.Conv2d(3, 32, 4, 4).to(torch.bfloat16)
    patches = loaded(conv, "bfloat16")
    x = torch.randn(2, 3, 12, 8)
    assert patches.weight.dtype is torch.float32  # what callers give it
    # A CPU that multiplies pairs of bfloat16 (AMX) rounds the input to it first.
    rounded = x.bfloat16().float() if multiplies_pairs() else x
    with torch.inference_mode():
        torch.testing.assert_close(patches(x), conv.float()(rounded), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(
    "conv",
    [
        nn.Conv2d(3, 8, 4, 2),
        nn.Conv2d(3, 8, 4, 4, padding=1),
        nn.Conv2d(4, 8, 4, 4, groups=2),
        nn.Conv2d(3, 8, 2, 2, dilation=2),
        nn.Conv2d(3, 8, 1, 1, padding="same"),
        nn.ConvTranspose2d(3, 8, 4, 4),
        nn.Linear(3, 8),
    ],
)
def test_others_are_left(conv: nn.Module) -> None:
    assert not is_of_patches(conv)
