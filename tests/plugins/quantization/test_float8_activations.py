"""Which layers make their activations 8-bit floats: those meant so, on a device that can, unless
the user says no."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import msgspec
import pytest
import torch

from dovetail.interfaces.quantization import LinearSpec
from dovetail_kernels import gpu
from dovetail_plugins.quantization import _float8_rounding
from dovetail_plugins.quantization.compressed_tensors import CompressedTensors
from dovetail_plugins.quantization.fbgemm_fp8 import FbgemmFp8
from dovetail_plugins.quantization.fp8 import Fp8
from dovetail_plugins.quantization.modelopt import ModelOpt
from dovetail_plugins.quantization.torchao import TorchAo
from dovetail_testing.contract import model_spec

SPEC = LinearSpec(
    name="model.layers.0.mlp.down_proj", in_size=256, out_sizes=(64,), dtype="float32", device="cpu"
)


def scheme(**inputs: Any) -> dict[str, Any]:
    weights = {"num_bits": 8, "type": "float", "strategy": "channel"}
    group = {"targets": ["Linear"], "weights": weights, "input_activations": inputs or None}
    return {"format": "float-quantized", "config_groups": {"group_0": group}}


def torchao(name: str) -> dict[str, Any]:
    return {"quant_type": {"default": {"_type": name, "_data": {}}}}


CASES: list[tuple[Any, dict[str, Any], bool]] = [
    (Fp8, {"activation_scheme": "dynamic"}, True),
    (Fp8, {"weight_block_size": [128, 128]}, True),
    (Fp8, {"weight_block_size": [128, 8]}, False),
    (FbgemmFp8, {}, True),
    (ModelOpt, {"quant_algo": "FP8"}, True),
    (ModelOpt, {"quant_algo": "FP8_PER_CHANNEL_PER_TOKEN"}, True),
    (ModelOpt, {"quant_algo": "FP8_PB_WO"}, False),
    (CompressedTensors, scheme(num_bits=8, type="float", strategy="token", dynamic=True), True),
    (CompressedTensors, scheme(), False),
    (TorchAo, torchao("Float8DynamicActivationFloat8WeightConfig"), True),
    (TorchAo, torchao("Float8WeightOnlyConfig"), False),
]


def forget_device() -> None:
    """Have the next layer find out anew whether the device rounds."""
    _float8_rounding._device_rounds.cache_clear()


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    forget_device()
    yield
    forget_device()


def rounds(cls: Any, config: dict[str, Any], **options: str) -> bool:
    """Return whether the matrix of a layer of a checkpoint has its activations rounded."""
    spec = model_spec()
    stored = {"quant_method": cls.stored_as[0], **config}
    spec = msgspec.structs.replace(
        spec, hf_config={**spec.hf_config, "quantization_config": stored}
    )
    layout = cls(cls.Options(**options), spec).layout(SPEC)
    tensors = {
        one.name: torch.ones(one.shape).to(getattr(torch, one.dtype))
        for one in layout.tensors(SPEC)
    }
    made: bool = layout.weight(tensors).has_float8_activations
    return made


@pytest.mark.parametrize(("cls", "config", "is_meant"), CASES)
def test_those_that_are_meant_so(
    cls: Any, config: dict[str, Any], is_meant: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(gpu.VARIABLE, "0")
    assert not rounds(cls, config), "a CPU rounds nothing"
    forget_device()
    monkeypatch.setenv(gpu.VARIABLE, "1")
    assert rounds(cls, config) == is_meant
    assert not rounds(cls, config, activations="float")


@pytest.mark.parametrize(("capability", "can"), [((8, 0), False), ((8, 9), True), ((9, 0), True)])
def test_by_capability(
    capability: tuple[int, int], can: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(gpu.VARIABLE, "0")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: capability)
    reason = gpu.float8_reason(torch.device("cuda"))
    assert (reason is None) == can
    if reason is not None:
        assert "capability 8.0" in reason and "8.9" in reason
