"""Backends over a cache that is divided over two ranks: they attend as an undivided one does."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
import torch

from dovetail import registry
from dovetail.interfaces.attention import AttentionQuery, AttentionSpec
from dovetail_kernels.cpu.library import missing_reason
from dovetail_kernels.integer_caches import stored_size
from dovetail_plugins.attention.flash_attn import FlashAttn
from dovetail_plugins.attention.flashinfer import FlashInfer
from dovetail_plugins.attention.triton_paged import TritonPaged
from dovetail_testing.attention_scenario import Scene, UsageCounter
from support.divided_attention import DividedAttention

SIZE = 2
SPEC = AttentionSpec(num_heads=8, num_kv_heads=1, head_size=32, scale=0.2, soft_cap=4.0)
STEPS: list[UsageCounter] = [[(0, 70), (1, 1), (2, 2)], [(1, 1), (0, 1), (2, 1)],
                             [(2, 33), (0, 1), (1, 5)]]  # fmt: skip
KV = {
    "float32": (torch.float32, {}),
    "bfloat16": (torch.bfloat16, {}),
    "e4m3": (torch.float8_e4m3fn, {"k_scale": 0.02, "v_scale": 0.03}),
}


@pytest.fixture(scope="module", params=["torch_sdpa", "native_cpu"])
def divided(request: pytest.FixtureRequest) -> Iterator[DividedAttention]:
    if request.param == "native_cpu" and missing_reason():
        pytest.skip(str(missing_reason()))
    plugin: Any = registry.load("attention_backend", request.param)
    options = {"round_products": False} if request.param == "native_cpu" else {}
    made = [plugin(plugin.Options(**options)) for _ in range(SIZE)]
    with DividedAttention(made) as one:
        yield one


@pytest.mark.parametrize("kv", KV)
@pytest.mark.parametrize("window", [None, 20])
def test_ranks_attend_as_one(divided: DividedAttention, kv: str, window: int | None) -> None:
    kv_dtype, scales = KV[kv]
    spec = replace(SPEC, window_tokens=window, **scales)
    stage = Scene(
        divided, spec, num_rows=3, block_tokens=16 * SIZE, max_row_tokens=96, kv_dtype=kv_dtype
    )
    stage.sinks = torch.linspace(-1, 1, SPEC.num_heads)
    for counts in STEPS:
        got, wanted = stage.step(counts)
        torch.testing.assert_close(got, wanted, rtol=0, atol=3e-5)


@pytest.mark.parametrize(("dtype", "within"), [("int8", 2e-4), ("int4", 0.2)])
def test_integers_divide_as_floats_do(dtype: str, within: float) -> None:
    """Scales lie beside the numbers of a rank's own tokens; weights of 16 bits round apart, and
    keys of 4 bits may be differences from other keys."""
    if missing_reason():
        pytest.skip(str(missing_reason()))
    plugin: Any = registry.load("attention_backend", "native_cpu")
    made = [plugin(plugin.Options()) for _ in range(SIZE + 1)]
    with DividedAttention(made[1:]) as divided:
        stages = [Scene(one, SPEC, num_rows=3, block_tokens=32, max_row_tokens=96)
                  for one in (made[0], divided)]  # fmt: skip
        for stage in stages:
            num_blocks = stages[0].cache.shape[0]
            stored = stored_size(dtype, SPEC.head_size)
            shape = stage.backend.kv_shape(num_blocks, 32, 1, stored)
            stage.cache = torch.full(shape, -77, dtype=torch.int8)
        for counts in STEPS:
            tokens = stages[0].draw(sum(count for _, count in counts))
            whole, got = (stage.step_with(counts, *tokens)[0] for stage in stages)
            torch.testing.assert_close(got, whole, rtol=0, atol=within)


def test_backends_without_log_sum_exps_are_told() -> None:
    query = AttentionQuery(
        device="cuda", dtype="float16", kv_dtype="float16", head_size=64, block_tokens=16,
        uses_lse=True,
    )  # fmt: skip
    for plugin, is_told in ((FlashAttn, True), (FlashInfer, True), (TritonPaged, False)):
        assert any("log-sum-exps" in reason for reason in plugin.why_not(query)) is is_told
