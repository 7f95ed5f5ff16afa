"""Quantizer: a matrix comes back almost unchanged, the same each time; nothing else changes."""

from __future__ import annotations

import json
from typing import Any

import pytest
import torch

from dovetail.interfaces.quantizer import Block, Inputs, Quantizer, QuantizeTask
from dovetail_testing.contract import model_spec, requires, without

SIZE = 128
LAYER = "model.layers.0.self_attn.q_proj"
TAKERS = tuple(f"self_attn.{letter}_proj" for letter in "qkv")
NORM = "input_layernorm.weight"
MOST = 0.3
"""Error of the weights that no layout of 3 bits or more comes near."""


@pytest.fixture
def quantizer(plugin: Any) -> Quantizer:
    """Return the quantizer with its default options, for a llama."""
    task = QuantizeTask(model=model_spec(architecture="LlamaForCausalLM"), group=64)
    new_quantizer: Quantizer = plugin(plugin.Options(), task)
    return new_quantizer


def weight_of(seed: int = 0) -> torch.Tensor:
    """Return a random matrix."""
    return torch.randn(SIZE, SIZE, generator=torch.Generator().manual_seed(seed))


def inputs_of(x: torch.Tensor) -> Inputs:
    """Return a layer's view of these inputs. Shapes: x [T, I]"""
    return Inputs(gram=x.T @ x / len(x), magnitude=x.abs().mean(0), num_tokens=len(x))


def given(plugin: Any) -> Inputs | None:
    """Return inputs of very different strength for quantizers that need them."""
    if "calibrated" not in plugin.capabilities:
        return None
    strength = torch.logspace(-1, 1, SIZE)
    return inputs_of(torch.randn(256, SIZE, generator=torch.Generator().manual_seed(1)) * strength)


class TestQuantizer:
    """Clauses of quantizers."""

    kind = "quantizer"

    def test_means_about_the_same(self, plugin: Any, quantizer: Quantizer) -> None:
        """The dequantized tensors are near the matrix, and finite."""
        weight = weight_of()
        done = quantizer.quantize(LAYER, weight.clone(), given(plugin))
        assert done.meant.shape == weight.shape
        assert float((done.meant.float() - weight).norm() / weight.norm()) < MOST

    def test_takes_less_room(self, plugin: Any, quantizer: Quantizer) -> None:
        """The tensors have other names than the matrix, and take at most 16 bits a weight."""
        done = quantizer.quantize(LAYER, weight_of(), given(plugin))
        assert all(name and "." not in name for name in done.tensors)
        assert 0 < sum(tensor.nbytes for tensor in done.tensors.values()) <= 2 * SIZE * SIZE

    @requires("grouped")
    def test_smaller_groups_are_nearer(self, plugin: Any) -> None:
        """A scale for fewer inputs costs no accuracy, and takes more room."""
        found = []
        for group in (32, 128):
            task = QuantizeTask(model=model_spec(architecture="LlamaForCausalLM"), group=group)
            quantizer = plugin(plugin.Options(), task)
            done = quantizer.quantize(LAYER, weight_of(), given(plugin))
            size_bytes = sum(tensor.nbytes for tensor in done.tensors.values())
            found.append((float((done.meant.float() - weight_of()).norm()), size_bytes))
        (small_error, small_bytes), (large_error, large_bytes) = found
        assert small_error < large_error
        assert small_bytes > large_bytes

    def test_leaves_the_matrix_alone(self, plugin: Any, quantizer: Quantizer) -> None:
        """The matrix it was given is as it was."""
        weight = weight_of()
        quantizer.quantize(LAYER, weight, given(plugin))
        assert torch.equal(weight, weight_of())

    def test_does_the_same_again(self, plugin: Any, quantizer: Quantizer) -> None:
        """The same matrix gives the same tensors, whatever came between."""
        first = quantizer.quantize(LAYER, weight_of(), given(plugin))
        quantizer.quantize(LAYER, weight_of(seed=5), given(plugin))
        again = quantizer.quantize(LAYER, weight_of(), given(plugin))
        for name, tensor in first.tensors.items():
            other = again.tensors[name]
            assert torch.equal(tensor.view(torch.uint8), other.view(torch.uint8)), name

    @pytest.mark.parametrize("filling", ["zeros", "constant"])
    def test_flat_matrices(self, plugin: Any, quantizer: Quantizer, filling: str) -> None:
        """Matrices without any spread come back almost unchanged."""
        weight = torch.zeros(SIZE, SIZE) if filling == "zeros" else torch.full((SIZE, SIZE), 0.5)
        done = quantizer.quantize(LAYER, weight.clone(), given(plugin))
        assert bool(done.meant.isfinite().all())
        assert float((done.meant.float() - weight).norm()) <= MOST * float(weight.norm())

    @requires("calibrated")
    def test_inputs_that_are_always_zero(self, quantizer: Quantizer) -> None:
        """Inputs without any statistics do no harm."""
        strength = torch.ones(SIZE)
        strength[::3] = 0
        done = quantizer.quantize(LAYER, weight_of(), inputs_of(torch.eye(SIZE) * strength))
        assert bool(done.meant.isfinite().all())

    @requires("calibrated")
    def test_a_block_computes_what_it_did(self, plugin: Any, quantizer: Quantizer) -> None:
        """Whatever is scaled, the product of a norm and the matrices after it is unchanged."""
        inputs = given(plugin)
        assert inputs is not None
        tensors = {f"{name}.weight": weight_of(seed) for seed, name in enumerate(TAKERS)}
        tensors[NORM] = torch.rand(SIZE, generator=torch.Generator().manual_seed(9)) + 0.5
        block = Block(name="model.layers.0", tensors=dict(tensors),
                      inputs=dict.fromkeys(TAKERS, inputs))  # fmt: skip
        quantizer.smooth(block)
        for name in TAKERS:
            found = block.tensors[f"{name}.weight"] * block.tensors[NORM]
            torch.testing.assert_close(found, tensors[f"{name}.weight"] * tensors[NORM])

    @without("writes")
    def test_settings_name_the_method(self, quantizer: Quantizer) -> None:
        """What goes into config.json is JSON, and says which method reads it."""
        settings = json.loads(json.dumps(dict(quantizer.settings(["lm_head"]))))
        assert isinstance(settings["quant_method"], str)
        assert settings["quant_method"]
