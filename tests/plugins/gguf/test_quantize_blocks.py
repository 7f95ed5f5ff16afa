"""Blocks that are written: read by the gguf package, and no further from the weights than
llama.cpp's."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from dovetail_plugins.gguf.blocks.integers import dequantize
from dovetail_plugins.gguf.blocks.quantize import to_blocks
from dovetail_plugins.gguf.blocks.types import BY_NAME

gguf = pytest.importorskip("gguf")

LLAMA_CPP = {
    "Q4_0": (0.10801, 0.09855),
    "Q4_1": (0.09047, 0.07248),
    "Q5_0": (0.05392, 0.04928),
    "Q5_1": (0.04376, 0.03512),
    "Q8_0": (0.0068, 0.00681),
    "Q2_K": (0.33373, 0.24839),
    "Q3_K": (0.17628, 0.15457),
    "Q4_K": (0.08342, 0.0742),
    "Q5_K": (0.04214, 0.03851),
    "Q6_K": (0.02162, 0.01959),
    "IQ4_NL": (0.08854, 0.08079),
    "IQ4_XS": (0.0894, 0.08215),
}
"""Relative errors of the matrix of `sample` by ggml_quantize_chunk of xllamacpp 2026.10.11549,
without and with importances."""
SEARCHED = sorted(set(LLAMA_CPP) - {"Q8_0"})


def sample() -> tuple[torch.Tensor, torch.Tensor]:
    """Return weights with heavy tails, and importances that differ much."""
    random = np.random.default_rng(5)
    weight = (random.standard_t(5, (48, 2048)) * 0.02).astype(np.float32)
    importances = (random.gamma(0.5, 1, 2048) + 0.01).astype(np.float32)
    return torch.from_numpy(weight), torch.from_numpy(importances)


def by_the_package(kind: str, blocks: torch.Tensor) -> torch.Tensor:
    floats: Any = gguf.quants.dequantize(blocks.numpy(), gguf.GGMLQuantizationType[kind])
    return torch.from_numpy(floats.astype(np.float32))


def error(found: torch.Tensor, weight: torch.Tensor, importances: torch.Tensor | None) -> float:
    scale = 1.0 if importances is None else importances.double()
    wrong = ((found.double() - weight).square() * scale).sum()
    return float((wrong / (weight.double().square() * scale).sum()).sqrt())


@pytest.mark.parametrize("kind", LLAMA_CPP)
def test_errors_are_at_most_llama_cpps(kind: str) -> None:
    weight, importances = sample()
    for number, given in enumerate((None, importances)):
        found = by_the_package(kind, to_blocks(kind, weight, given))
        assert error(found, weight, given) <= LLAMA_CPP[kind][number] * 1.001


@pytest.mark.parametrize("kind", LLAMA_CPP)
def test_the_package_reads_what_is_read_here(kind: str) -> None:
    blocks = to_blocks(kind, sample()[0][:5])
    assert blocks.shape == (5, 2048 // BY_NAME[kind].values * BY_NAME[kind].block_bytes)
    torch.testing.assert_close(
        by_the_package(kind, blocks), dequantize(kind, blocks), rtol=1e-6, atol=1e-8
    )


@pytest.mark.parametrize("kind", SEARCHED)
def test_importances_lower_the_error_that_they_weigh(kind: str) -> None:
    weight, importances = sample()
    without = dequantize(kind, to_blocks(kind, weight))
    heeded = dequantize(kind, to_blocks(kind, weight, importances))
    assert error(heeded, weight, importances) < 0.98 * error(without, weight, importances)


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("kind", LLAMA_CPP)
@pytest.mark.parametrize("value", [0.0, 0.37, -0.37, 1e-12, 3000.0])
def test_rows_of_one_value(kind: str, value: float) -> None:
    weight = torch.full((2, 512), value)
    weight[1, 3] = 0
    for importances in (None, torch.zeros(512), torch.ones(512)):
        found = dequantize(kind, to_blocks(kind, weight, importances))
        assert found.isfinite().all()
        # Numbers below float16's are zeros; one outlier leaves few levels between.
        assert error(found, weight, None) < 0.12 if abs(value) > 1e-6 else found.abs().max() < 1e-6


@pytest.mark.parametrize("kind", ["Q4_K", "Q3_K", "IQ4_XS"])
def test_rows_do_not_depend_on_each_other(kind: str) -> None:
    weight, importances = sample()
    whole = to_blocks(kind, weight, importances)
    parts = [to_blocks(kind, row.unsqueeze(0), importances) for row in weight[:3]]
    assert torch.equal(whole[:3], torch.cat(parts))


def test_threads_change_nothing() -> None:
    weight, importances = sample()
    wide, before = weight.repeat(3, 1), torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = to_blocks("Q4_K", wide, importances)
        torch.set_num_threads(3)
        assert torch.equal(to_blocks("Q4_K", wide, importances), alone)
        assert torch.get_num_threads() == 3
    finally:
        torch.set_num_threads(before)


def test_experts_in_one_tensor() -> None:
    weight = sample()[0].view(3, 16, 2048)
    blocks = to_blocks("Q4_K", weight)
    assert blocks.shape == (3, 16, 2048 // 256 * 144)
    assert torch.equal(blocks[1], to_blocks("Q4_K", weight[1]))
