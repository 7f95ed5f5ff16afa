"""FlashAttn and FlashInfer: their calls, against doubles of the packages.

A double has the documented signature, checks what it is handed, and computes by the definition.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

import pytest
import torch
from msgspec import structs

from dovetail import registry
from dovetail.errors import DovetailError
from dovetail.interfaces.attention import AttentionBackend, AttentionQuery, AttentionSpec
from dovetail.interfaces.plugin import NoOptions
from dovetail_plugins.attention.flash_attn import FlashAttn
from dovetail_plugins.attention.flashinfer import FlashInfer
from dovetail_testing.attention_cases import CASES, OP, AttentionStep
from dovetail_testing.attention_scenario import Scene

CPU = torch.device("cpu")
LACKED = ("_sinks_", "_all_", "_bias_", "_H4_K4", "_chunk_")
FITTING = [name for name in CASES if not any(word in name for word in LACKED)]
KINDS = ["flash_attn_interface", "flash_attn", "flashinfer"]


def attended(
    q: torch.Tensor,
    caches: tuple[torch.Tensor, torch.Tensor],
    table: torch.Tensor,
    query_start: torch.Tensor,
    seq_lens: torch.Tensor,
    **rules: Any,
) -> torch.Tensor:
    """Return what the definition says; window as these packages count it."""
    left, right, causal = rules["left"], rules["right"], rules["causal"]
    assert right == (-1 if left == -1 else 0 if causal else left)
    assert q.dim() == 3 and caches[0].shape == caches[1].shape and caches[0].dim() == 4
    for index in (table, query_start, seq_lens):
        assert index.dtype == torch.int32
    assert len(query_start) == len(seq_lens) + 1 == len(table) + 1
    return OP.reference(
        q,
        torch.stack([cache.float() for cache in caches]),
        table,
        query_start,
        seq_lens,
        rules["scale"],
        window=None if left == -1 else left + 1,
        soft_cap=rules["cap"] or None,
        is_causal=causal,
        k_scale=rules.get("k_scale") or 1.0,
        v_scale=rules.get("v_scale") or 1.0,
        alibi_slopes=rules.get("slopes"),
    )


def flash_attn_with_kvcache(
    q: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    k: None = None,
    v: None = None,
    cache_seqlens: Any = None,
    page_table: Any = None,
    cu_seqlens_q: Any = None,
    max_seqlen_q: int | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
) -> torch.Tensor:
    """Version 3's, as far as it is used."""
    assert max_seqlen_q == int(cu_seqlens_q.diff().max())
    return attended(
        q, (k_cache, v_cache), page_table, cu_seqlens_q, cache_seqlens, scale=softmax_scale,
        left=window_size[0], right=window_size[1], causal=causal, cap=softcap,
    )  # fmt: skip


def flash_attn_varlen_func(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    cu_seqlens_q: torch.Tensor,
    cu_seqlens_k: torch.Tensor,
    max_seqlen_q: int,
    max_seqlen_k: int,
    dropout_p: float = 0.0,
    softmax_scale: float | None = None,
    causal: bool = False,
    window_size: tuple[int, int] = (-1, -1),
    softcap: float = 0.0,
    alibi_slopes: torch.Tensor | None = None,
    deterministic: bool = False,
    return_attn_probs: bool = False,
    block_table: Any = None,
) -> torch.Tensor:
    """Version 2's."""
    assert max_seqlen_q == int(cu_seqlens_q.diff().max())
    assert max_seqlen_k == int(cu_seqlens_k.diff().max()) and int(cu_seqlens_k[0]) == 0
    assert alibi_slopes is None or (alibi_slopes.dtype == torch.float32 and not softcap)
    return attended(
        q, (k, v), block_table, cu_seqlens_q, cu_seqlens_k.diff(), scale=softmax_scale,
        left=window_size[0], right=window_size[1], causal=causal, cap=softcap, slopes=alibi_slopes,
    )  # fmt: skip


class BatchPrefillWithPagedKVCacheWrapper:
    """flashinfer's. Plans take lists of blocks, of which the double makes a table again."""

    made = 0
    plans = 0

    def __init__(self, float_workspace_buffer: torch.Tensor, kv_layout: str = "HND") -> None:
        assert kv_layout == "NHD" and float_workspace_buffer.dtype == torch.uint8
        type(self).made += 1

    def plan(
        self,
        qo_indptr: torch.Tensor,
        paged_kv_indptr: torch.Tensor,
        paged_kv_indices: torch.Tensor,
        paged_kv_last_page_len: torch.Tensor,
        num_qo_heads: int,
        num_kv_heads: int,
        head_dim_qk: int,
        page_size: int,
        *,
        causal: bool = False,
        sm_scale: float | None = None,
        window_left: int = -1,
        logits_soft_cap: float | None = None,
        q_data_type: torch.dtype = torch.float16,
        kv_data_type: torch.dtype | None = None,
    ) -> None:
        type(self).plans += 1
        counts = paged_kv_indptr.diff()
        assert paged_kv_indices.shape == (int(paged_kv_indptr[-1]),)
        assert bool(
            (paged_kv_last_page_len >= 1).all() & (paged_kv_last_page_len <= page_size).all()
        )
        table = torch.zeros(len(counts), int(counts.max()), dtype=torch.int32)
        for row, count in enumerate(counts.tolist()):
            begin = int(paged_kv_indptr[row])
            table[row, :count] = paged_kv_indices[begin : begin + count]
        seq_lens = (counts - 1) * page_size + paged_kv_last_page_len
        self.rows = (table, qo_indptr, seq_lens.int())
        self.rules = {
            "scale": sm_scale, "left": window_left, "causal": causal,
            "right": 0 if causal and window_left >= 0 else -1,
            "cap": logits_soft_cap,
        }  # fmt: skip
        self.sizes = (num_qo_heads, num_kv_heads, head_dim_qk, q_data_type, kv_data_type)

    def run(
        self,
        q: torch.Tensor,
        paged_kv_cache: tuple[torch.Tensor, torch.Tensor],
        *,
        k_scale: float | None = None,
        v_scale: float | None = None,
    ) -> torch.Tensor:
        keys = paged_kv_cache[0]
        assert self.sizes == (q.shape[1], keys.shape[2], q.shape[2], q.dtype, keys.dtype)
        return attended(
            q, paged_kv_cache, *self.rows, **self.rules, k_scale=k_scale, v_scale=v_scale
        )


PARTS = {
    "flash_attn_interface": flash_attn_with_kvcache,
    "flash_attn": flash_attn_varlen_func,
    "flashinfer": BatchPrefillWithPagedKVCacheWrapper,
}


@pytest.fixture
def doubles(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Return what installs doubles of packages, as the only ones there are."""

    def install(*names: str) -> None:
        for name in KINDS:
            module = ModuleType(name)
            module.__spec__ = ModuleSpec(name, None) if name in names else None
            setattr(module, PARTS[name].__name__, PARTS[name])
            monkeypatch.setitem(sys.modules, name, module if name in names else None)

    install()
    return install


def backend_of(name: str) -> AttentionBackend:
    return FlashInfer(NoOptions()) if name == "flashinfer" else FlashAttn(NoOptions())


def query(**changes: Any) -> AttentionQuery:
    asked: dict[str, Any] = {
        "device": "cuda",
        "dtype": "bfloat16",
        "kv_dtype": "bfloat16",
        "head_size": 128,
        "block_tokens": 16,
    }
    return AttentionQuery(**(asked | changes))


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("name", KINDS)
@pytest.mark.parametrize("case", FITTING)
def test_calls_mean_what_is_defined(name: str, case: str, doubles: Any) -> None:
    doubles(name)
    cannot = {"flashinfer": ("_sides_", "_alibi_"), "flash_attn_interface": ("_alibi_",)}
    if any(word in case for word in cannot.get(name, ())):
        pytest.skip("it says that it cannot")
    AttentionStep(backend_of(name), CASES[case], CPU).check()


def test_flashinfer_plans_once_for_each_kind_of_layer(doubles: Any) -> None:
    doubles("flashinfer")
    step = AttentionStep(backend_of("flashinfer"), CASES["mixed_plain_H4_K2-float32"], CPU)
    wrapper = BatchPrefillWithPagedKVCacheWrapper
    wrapper.made = wrapper.plans = 0
    for _ in range(2):
        call = step.call(step.layout)
        for window in (None, 9, None, 9):
            spec = replace(step.spec, window_tokens=window)
            step.backend.forward(structs.replace(call, spec=spec))
        del call  # as a step's are once it is over
    assert (wrapper.made, wrapper.plans) == (1, 4)  # the plain kind's was made to fill the cache


def test_flashinfer_keeps_groups_of_one_kind_apart(doubles: Any) -> None:
    """Layers of two groups take turns; their rows lie in other blocks, so each has its own plan."""
    doubles("flashinfer")
    backend = backend_of("flashinfer")
    steps = [
        AttentionStep(backend, CASES[f"{rows}_plain_H4_K2-float32"], CPU)
        for rows in ("mixed", "prefill")
    ]
    wanted = [step.run() for step in steps]
    calls = [step.call(step.layout) for step in steps]
    for _ in range(2):
        for call, expected in zip(calls, wanted, strict=True):
            found = backend.forward(call)
            torch.testing.assert_close(found, expected)


@pytest.mark.parametrize("kv_dtype", [torch.float8_e4m3fn, torch.float8_e5m2])
def test_flashinfer_keeps_8_bits_under_scales(kv_dtype: torch.dtype, doubles: Any) -> None:
    doubles("flashinfer")
    spec = AttentionSpec(
        num_heads=4, num_kv_heads=2, head_size=64, scale=0.125, k_scale=0.01, v_scale=0.3
    )
    stage = Scene(backend_of("flashinfer"), spec, num_rows=2, block_tokens=16, kv_dtype=kv_dtype)
    for counts in ([(0, 5), (1, 20)], [(1, 1), (0, 3)]):
        torch.testing.assert_close(*stage.step(counts), rtol=1e-5, atol=2e-5)


@pytest.mark.parametrize(
    ("plugin", "changes", "word"),
    [
        (FlashAttn, {"device": "cpu"}, "not on cpu"),
        (FlashAttn, {"dtype": "float32", "kv_dtype": "float32"}, "float16"),
        (FlashAttn, {"kv_dtype": "float8_e4m3fn"}, "must hold bfloat16"),
        (FlashAttn, {"head_size": 260}, "multiple of 8"),
        (FlashAttn, {"uses_sinks": True}, "sinks"),
        (FlashInfer, {"head_size": 80}, "64, 128 or 256"),
        (FlashInfer, {"kv_dtype": "int8"}, "int8"),
        (FlashInfer, {"uses_alibi": True}, "ALiBi"),
        (FlashAttn, {"uses_alibi": True}, "by version 3"),
        (FlashInfer, {"uses_window": True, "is_causal": False}, "both sides"),
        (FlashAttn, {"uses_position_bias": True}, "relative position"),
        (FlashAttn, {"uses_chunk": True}, "chunks of keys"),
        (FlashInfer, {"uses_chunk": True}, "chunks of keys"),
    ],
)
def test_why_not_names_the_reason(
    plugin: Any, changes: dict[str, Any], word: str, doubles: Any
) -> None:
    doubles("flash_attn_interface")
    (reason,) = plugin.why_not(query(**changes))
    assert word in reason


def test_version_2_wants_large_blocks(doubles: Any) -> None:
    doubles("flash_attn")
    assert "256" in FlashAttn.why_not(query())[0]
    assert FlashAttn.why_not(query(block_tokens=256, uses_alibi=True)) == []
    (reason,) = FlashAttn.why_not(query(block_tokens=256, uses_alibi=True, uses_soft_cap=True))
    assert "beside soft caps" in reason
    doubles("flash_attn_interface", "flash_attn")
    assert FlashAttn.why_not(query()) == []


@pytest.mark.parametrize(
    ("name", "package"),
    [("FLASH_ATTN", "pip install flash-attn"), ("FLASHINFER", "pip install flashinfer-python")],
)
def test_without_its_package_it_says_what_to_install(name: str, package: str, doubles: Any) -> None:
    with pytest.raises(DovetailError, match=package):
        registry.choose("attention_backend", name, query=query())
