"""Layers of checkpoints stored quantized: packed here by the format's own words, read back."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest
import torch
from torch import nn

from dovetail.interfaces.quantization import LinearSpec
from dovetail_plugins.quantization.awq import PLACES, Awq
from dovetail_plugins.quantization.gptq import Gptq
from dovetail_testing.contract import model_spec


def pack(values: torch.Tensor, bits: int, places: list[int] | None = None) -> torch.Tensor:
    """Return values [..., n] as int32 words [..., n * bits / 32], bit by bit."""
    n = values.shape[-1]
    count = 32 // bits
    bit_rows = torch.zeros(*values.shape[:-1], n * bits, dtype=torch.int64)
    for i in range(n):
        at = i if places is None else i // count * count + places[i % count]
        for b in range(bits):
            bit_rows[..., at * bits + b] = (values[..., i].long() >> b) & 1
    words = (bit_rows.view(*values.shape[:-1], -1, 32) << torch.arange(32)).sum(-1)
    return (words - (words >> 31 << 32)).to(torch.int32)


def method(cls: Any, **config: Any) -> Any:
    spec = model_spec()
    stored = {"quant_method": cls.stored_as[0], **config}
    spec = msgspec.structs.replace(
        spec, hf_config={**spec.hf_config, "quantization_config": stored}
    )
    assert not cls.why_not(spec)
    return cls(cls.Options(activations="float"), spec)


def built(made: Any, spec: LinearSpec, tensors: dict[str, torch.Tensor]) -> tuple[Any, nn.Module]:
    """Return the layer filled with tensors that are the parts' own joined already."""
    linear, layer = made.linear(spec), nn.Module()
    linear.create(layer, spec)
    for name, tensor in tensors.items():
        assert layer.get_parameter(name).shape == tensor.shape, name
        layer.get_parameter(name).data.copy_(tensor)
    linear.finish(layer)
    return linear, layer


pytestmark = pytest.mark.any_isa  # integers are shifted
SPEC = LinearSpec(
    name="a.qkv_proj", in_size=256, out_sizes=(64, 32, 32), dtype="float32", device="cpu"
)


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("bits", [2, 3, 4, 8])
@pytest.mark.parametrize("group", [32, 64, -1])
@pytest.mark.parametrize("order", ["in place", "shared", "own"])
@pytest.mark.parametrize("version", ["gptq", "gptq_v2"])
def test_gptq(bits: int, group: int, order: str, version: str) -> None:
    random = torch.Generator().manual_seed(bits * 100 + group)
    inputs, outputs = 256, 128
    size = inputs if group < 0 else group
    levels = 2**bits
    values = torch.randint(levels, (inputs, outputs), generator=random)
    scales = (torch.rand(inputs // size, outputs, generator=random) / 50 + 0.01).half()
    zeros = torch.randint(1, levels, (inputs // size, outputs), generator=random)
    place = torch.arange(inputs) // size
    orders = [place.clone() for _ in SPEC.out_sizes]
    if order == "shared":
        orders = [place[torch.randperm(inputs, generator=random)]] * 3
    elif order == "own":
        orders = [place[torch.randperm(inputs, generator=random)] for _ in SPEC.out_sizes]
    tensors = {
        "qweight": pack(values.T, bits).T,
        "qzeros": pack(zeros - (1 if version == "gptq" else 0), bits),
        "scales": scales,
        "g_idx": torch.stack(orders).int(),
    }
    wanted = []
    start = 0
    for size_out, group_of in zip(SPEC.out_sizes, orders, strict=True):
        part = slice(start, start + size_out)
        part_zeros, part_scales = zeros[group_of, part], scales[group_of, part].float()
        wanted.append(((values[:, part] - part_zeros) * part_scales).T)
        start += size_out
    meant = torch.cat(wanted)
    made = method(Gptq, bits=bits, group_size=group, checkpoint_format=version)
    linear, layer = built(made, SPEC, tensors)
    x = torch.randn(5, inputs, generator=random)
    got, right = linear.apply(layer, x, None), x @ meant.T
    assert (got - right).abs().max() <= 1e-4 * right.abs().max()
    held, stored = (sum(t.nbytes for t in ts) for ts in (layer.buffers(), tensors.values()))
    assert held <= 1.1 * stored * max(1, 4 / bits)  # 2 and 3 bits are kept as 4


@pytest.mark.parametrize("group", [32, 128])
def test_awq(group: int) -> None:
    random = torch.Generator().manual_seed(group)
    inputs, outputs = 256, 128
    values = torch.randint(16, (inputs, outputs), generator=random)
    scales = (torch.rand(inputs // group, outputs, generator=random) / 50 + 0.01).half()
    zeros = torch.randint(16, (inputs // group, outputs), generator=random)
    tensors = {
        "qweight": pack(values, 4, PLACES),
        "qzeros": pack(zeros, 4, PLACES),
        "scales": scales,
    }
    place = torch.arange(inputs) // group
    meant = ((values - zeros[place]) * scales[place].float()).T
    linear, layer = built(method(Awq, bits=4, group_size=group), SPEC, tensors)
    x = torch.randn(5, inputs, generator=random)
    right = x @ meant.T
    assert (linear.apply(layer, x, None) - right).abs().max() <= 1e-4 * right.abs().max()
    held = sum(t.nbytes for t in layer.buffers())
    assert held <= 1.25 * sum(t.nbytes for t in tensors.values())
