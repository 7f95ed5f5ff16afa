"""Every type dequantizes bit for bit as the gguf package does, and is multiplied as just that."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from dovetail_kernels.gemm.matrix import Matrix
from dovetail_plugins.gguf.blocks.integers import dequantize
from dovetail_plugins.gguf.blocks.types import BY_NAME, QUANTIZED, TYPES
from dovetail_plugins.gguf.blocks.weight import weight_of
from dovetail_plugins.layers.stored.products import takes_of, with_floats, with_integers

gguf = pytest.importorskip("gguf")

MEMORY = 1.1
"""A matrix's memory over its bytes in the file, at most."""


def random_rows(name: str, *, is_tame: bool) -> np.ndarray:
    """Return rows of random blocks; tame ones hold no infinite step and no NaN."""
    from support.gguf_files import quantized

    random = np.random.default_rng(len(name))
    if is_tame:
        return quantized(random.standard_normal((96, 512)).astype(np.float32), name)[0]
    return random.integers(0, 256, (64, 3 * BY_NAME[name].block_bytes), dtype=np.uint8)


def theirs(name: str, rows: np.ndarray) -> np.ndarray:
    with np.errstate(all="ignore"):
        return gguf.quants.dequantize(rows, gguf.GGMLQuantizationType[name])


def test_sizes_of_blocks() -> None:
    for code, ours in TYPES.items():
        kind = gguf.GGMLQuantizationType(code)
        assert (kind.name, gguf.GGML_QUANT_SIZES[kind]) == (
            ours.name,
            (ours.values, ours.block_bytes),
        )


@pytest.mark.parametrize("name", QUANTIZED)
def test_floats_bit_for_bit(name: str) -> None:
    rows = random_rows(name, is_tame=False)
    want, got = theirs(name, rows), dequantize(name, torch.from_numpy(rows)).numpy()
    assert got.shape == want.shape
    known = np.isfinite(want)
    assert known.mean() > 0.5
    assert np.array_equal(got[known], want[known])
    assert np.array_equal(np.isnan(got), np.isnan(want))


@pytest.mark.parametrize("name", QUANTIZED)
def test_the_matrix_is_the_one_that_is_meant(name: str) -> None:
    rows = torch.from_numpy(random_rows(name, is_tame=True))
    meant = torch.from_numpy(theirs(name, rows.numpy()))
    x = torch.randn(5, 512, generator=torch.Generator().manual_seed(0))
    right = x @ meant.T
    for activations, bound in (("float", 1e-5), ("int8", 2e-2)):
        made = weight_of(name, rows)
        has_integers = activations == "int8" and takes_of(made) == "int8"
        weight = with_integers(made) if has_integers else with_floats(made)
        assert torch.equal(weight.dequantize(), meant)
        matrix = Matrix(weight, device="cpu", dtype=torch.float32)
        assert torch.equal(matrix.rows(torch.arange(96)), meant)
        assert (matrix.multiply(x) - right).abs().max() <= bound * right.abs().max()
        held = sum(t.nbytes for t in matrix.tensors().values())
        assert held <= MEMORY * rows.nbytes


def test_a_block_of_one_value_has_no_step() -> None:
    """A step of nought and an offset: the matrix is the offset, not NaN."""
    rows = torch.from_numpy(random_rows("Q4_1", is_tame=True)).clone()
    rows[:, :2] = 0
    meant = torch.from_numpy(theirs("Q4_1", rows.numpy()))
    assert torch.equal(with_integers(weight_of("Q4_1", rows)).dequantize(), meant)
    assert (meant[:, :32] != 0).any()


@pytest.mark.parametrize("name", ["IQ1_S", "IQ2_XXS", "IQ3_XXS"])
def test_small_steps_stay_in_16_bits(name: str) -> None:
    """An eighth of them is no float16: the steps of the file are, the eighth is the output's."""
    rows = torch.from_numpy(random_rows(name, is_tame=True)).clone()
    blocks = rows.view(-1, BY_NAME[name].block_bytes)
    blocks[:, :2] = torch.tensor([3e-4]).half().view(torch.uint8) | 1
    meant = torch.from_numpy(theirs(name, rows.numpy()))
    weight = with_integers(weight_of(name, rows))
    assert weight.steps is not None
    assert weight.steps.dtype == torch.float16
    assert torch.equal(weight.dequantize(), meant)
    matrix = Matrix(weight, device="cpu", dtype=torch.float32)
    assert torch.equal(matrix.rows(torch.arange(96)), meant)
