"""Products compile for a device that is not here to its matrix instructions, numbers in registers.

That every op compiles is `test_triton.py`'s.
"""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dovetail_kernels.gemm import gpu
from dovetail_kernels.gemm.cases import make_weight
from dovetail_kernels.gemm.stacked import stack
from dovetail_kernels.gpu import interprets
from dovetail_kernels.gpu.offline import MAX_STACK_BYTES, Compiled, absent_gpu
from dovetail_kernels.states import step_arguments

pytest.importorskip("triton")
if interprets():
    pytest.skip("kernels are interpreted in this process", allow_module_level=True)

HOPPER = 90


def products(found: list[Compiled]) -> list[tuple[tuple[str, ...], int]]:
    """Return the matrix instructions and the bytes of stack of the kernels called product."""
    return [(one.products(), one.stack_bytes) for one in found if one.name == "product"]


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize(
    ("format", "options", "rows", "wanted"),
    [
        ("int4", {"group": 128, "is_symmetric": False}, 1, "HGMMA"),
        ("int4", {"group": 32, "run": 256}, 128, "HGMMA"),
        ("int4_int8", {"group": 128}, 128, "IGMMA"),
        ("int8", {}, 16, "IGMMA"),
        ("table4", {"group": 16}, 16, "HGMMA"),
        ("float8", {"group": 128}, 128, "QGMMA"),
        ("int2", {"group": 32}, 128, "HGMMA"),
        ("int3_int8", {"group": 128}, 128, "IGMMA"),
        ("int5_int8", {"group": 32}, 16, "IGMMA"),
        ("int6", {"group": 16, "run": 256}, 16, "HGMMA"),
    ],
)
def test_products_of_a_hopper_device(
    format: str, options: dict[str, Any], rows: int, wanted: str
) -> None:
    weight = make_weight(format, 256, 1024, **options)
    packed = gpu.pack(weight, is_gated=rows > 64, has_float8_activations=format == "float8")
    with absent_gpu(HOPPER) as device:
        packed(torch.zeros(rows, 1024, dtype=torch.bfloat16), activation="silu")
    assert products(device.found) == [((wanted,), 0)]


@pytest.mark.parametrize("format", ["int3", "table4"])
def test_products_of_a_device_with_less_shared_memory(format: str) -> None:
    packed = gpu.pack(make_weight(format, 256, 1024, group=32))
    with absent_gpu(89) as device:
        packed(torch.zeros(128, 1024, dtype=torch.bfloat16))
    assert products(device.found) == [(("HMMA",), 0)]


@pytest.mark.parametrize(
    ("capability", "cached"), [(80, torch.bfloat16), (HOPPER, torch.float8_e4m3fn)]
)
def test_prefills_of_large_heads(capability: int, cached: torch.dtype) -> None:
    from dovetail_kernels.paged_attention import triton as attention

    q = torch.zeros(40, 8, 256, dtype=torch.bfloat16)
    cache = torch.zeros(2, 4, 16, 2, 256).to(cached)
    rows = (torch.tensor(one, dtype=torch.int32) for one in ([[0] * 4], [0, 40], [60]))
    extent = attention.StepExtent(max_query_tokens=40, max_seq_tokens=60, has_decodes=False)
    with absent_gpu(capability) as device:
        attention.attend(q, cache, *rows, attention.LayerRules(scale=1.0), extent)
    assert {one.name: one.stack_bytes for one in device.found} == {"prefill": 0}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("capability", [80, 86, HOPPER])
@pytest.mark.parametrize("by_channel", [False, True])
def test_prompts_of_the_delta_rule(capability: int, by_channel: bool) -> None:
    """Of Qwen3-Next's heads, and with channels that decay apart: products by matrix units, and all
    numbers in registers."""
    from dovetail_kernels.gated_delta import triton as delta

    parts = [torch.zeros(70, heads, 128, dtype=torch.bfloat16) for heads in (16, 16, 32)]
    decays = (32, 128) if by_channel else (32,)
    inputs = [torch.zeros(70, *shape, dtype=torch.bfloat16) for shape in (decays, (32,))]
    step, blocks = step_arguments([(0, 65), (9, 5)], 256, torch.device("cpu"))
    state = torch.zeros(blocks, 32, 128, 128)
    with absent_gpu(capability) as device:
        own = torch.zeros(32), torch.zeros(decays), 128**-0.5
        delta.run(*parts, *inputs, *own, state=state, **step)
    wanted = {"sum_channels", "prepare_channels"} if by_channel else {"prepare"}
    assert {one.name for one in device.found} == {"token_by_token", "invert", "walk"} | wanted
    assert all(one.stack_bytes <= MAX_STACK_BYTES for one in device.found)
    assert next(one.products for one in device.found if one.name == "walk")


def test_prompts_of_selective_scans() -> None:
    """Of Falcon Mamba's layers, beside many rows: all numbers in registers."""
    from dovetail_kernels.selective_scan import triton as scans

    channels, size = 8192, 16
    rows = [(0, 70), *[(9, 1)] * 255]
    step, blocks = step_arguments(rows, 512, torch.device("cpu"))
    x, dt, z = torch.zeros(3, 325, channels, dtype=torch.bfloat16)
    b, c = torch.zeros(2, 325, size, dtype=torch.bfloat16)
    a, state = torch.zeros(channels, size), torch.zeros(blocks, channels, size)
    with absent_gpu(HOPPER) as device:
        scans.run(x, dt, a, b, c, torch.zeros(channels), None, z, state, **step)
    assert {one.name for one in device.found} == {"token_by_token", "sum_chunks", "walk", "scan"}
    assert all(one.stack_bytes <= MAX_STACK_BYTES for one in device.found)


def test_prompts_of_decaying_averages() -> None:
    """Of RWKV-4's layers, beside many rows: all numbers in registers."""
    from dovetail_kernels.wkv import triton as averages

    rows = [(0, 70), *[(9, 1)] * 255]
    step, blocks = step_arguments(rows, 512, torch.device("cpu"))
    tokens, (decay, first) = torch.zeros(3, 325, 2048, dtype=torch.bfloat16), torch.zeros(2, 2048)
    with absent_gpu(HOPPER) as device:
        averages.run(*tokens, decay, first, torch.zeros(blocks, 3, 2048), **step)
    assert {one.name for one in device.found} == {"token_by_token", "sum_chunks", "walk", "average"}
    assert all(one.stack_bytes <= MAX_STACK_BYTES for one in device.found)


def test_slopes() -> None:
    from dovetail_kernels.paged_attention import triton as attention

    q, cache = (
        torch.zeros(shape, dtype=torch.bfloat16) for shape in ((41, 8, 128), (2, 4, 16, 8, 128))
    )
    rows = (torch.tensor(one, dtype=torch.int32) for one in ([[0] * 4] * 2, [0, 40, 41], [60, 9]))
    extent = attention.StepExtent(max_query_tokens=40, max_seq_tokens=60)
    with absent_gpu(HOPPER) as device:
        slopes = torch.ones(8)
        attention.attend(q, cache, *rows, attention.LayerRules(scale=1.0), extent, slopes=slopes)
    assert {one.name: one.stack_bytes for one in device.found} == {"prefill": 0, "decode": 0}


@pytest.mark.parametrize("programs", [0, 10**6])
def test_spans_of_a_long_past(programs: int, monkeypatch: pytest.MonkeyPatch) -> None:
    from dovetail_kernels.paged_attention import triton as attention

    monkeypatch.setattr(attention, "PREFILL_PROGRAMS", programs)
    q, cache = (
        torch.zeros(shape, dtype=torch.bfloat16) for shape in ((40, 8, 128), (2, 4, 16, 2, 128))
    )
    rows = (torch.zeros(1, 300, dtype=torch.int32), torch.tensor([0, 40]), torch.tensor([4500]))
    extent = attention.StepExtent(max_query_tokens=40, max_seq_tokens=4500, has_decodes=False)
    with absent_gpu(HOPPER) as device:
        attention.attend(q, cache, *rows, attention.LayerRules(scale=1.0), extent)
    assert {one.name: one.stack_bytes for one in device.found} == (
        {"prefill": 0, "add_spans": 0} if programs else {"prefill": 0}
    )


def test_experts() -> None:
    from dovetail_kernels.moe import triton as experts

    first = stack([gpu.pack(make_weight("int4", 128, 128, group=64), is_gated=True)] * 4)
    second = stack([gpu.pack(make_weight("int4", 128, 64, group=64))] * 4)
    assert first is not None
    assert second is not None
    picked = torch.zeros(5, 2)
    x = torch.zeros(5, 128, dtype=torch.bfloat16)
    with absent_gpu(HOPPER) as device:
        experts.run(x, first, second, picked, picked.long(), "silu")
    assert products(device.found) == [(("HGMMA",), 0)] * 2
