"""NativeCpu: what it refuses and why, its cache's size, and whole models upon it.

The contract's small scenes have blocks of 4 tokens, which it refuses; they are played here with 16.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import dovetail_kernels.cpu.library as native_library
from dovetail import registry
from dovetail.interfaces.attention import AttentionQuery, AttentionSpec
from dovetail.interfaces.data.step import KVGroup, KVLayer, KVLayout
from dovetail.runner.kv.allocation import allocate_tensors, layer_caches
from dovetail_plugins.attention.native_cpu import NativeCpu
from dovetail_testing.attention_scenario import Scene
from dovetail_testing.contracts.test_attention_layouts import HEADS, STEPS
from dovetail_testing.harness import PagedModel, load_model
from dovetail_testing.tiny.models import write_tiny_checkpoint

NEEDED = pytest.mark.skipif(
    native_library.missing_reason() is not None, reason=str(native_library.missing_reason())
)
PLAIN = AttentionSpec(num_heads=4, num_kv_heads=2, head_size=16, scale=0.25)
MODELS: dict[str, dict[str, Any]] = {
    "LlamaForCausalLM": {"head_dim": 16},
    "Qwen3ForCausalLM": {"head_dim": 16},
    "Gemma2ForCausalLM": {"head_dim": 16},
}


def query(**changes: Any) -> AttentionQuery:
    asked = {
        "device": "cpu",
        "dtype": "float32",
        "kv_dtype": "float32",
        "head_size": 64,
        "block_tokens": 16,
    }
    return AttentionQuery(**(asked | changes))


def made() -> NativeCpu:
    return NativeCpu(NativeCpu.Options())


@pytest.mark.parametrize(
    ("changes", "word"),
    [
        ({"device": "cuda"}, "cuda"),
        ({"dtype": "bfloat16"}, "float32 activations"),
        ({"kv_dtype": "float64"}, "float64"),
        ({"head_size": 72}, "multiple of 16"),
        ({"head_size": 528}, "up to 512"),
        ({"block_tokens": 8}, "--block-size"),
    ],
)
def test_why_not_names_the_reason(changes: dict[str, Any], word: str) -> None:
    (reason,) = NativeCpu.why_not(query(**changes))
    assert word in reason


def test_without_a_library_auto_takes_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(native_library, "missing_reason", lambda: "no compiler")
    assert NativeCpu.why_not(query()) == ["no compiler"]
    assert registry.choose("attention_backend", "auto", query=query()).name == "torch_sdpa"


@NEEDED
@pytest.mark.parametrize("kv_dtype", ["float32", "bfloat16", "float16", "float8_e5m2", "int8"])
def test_auto_takes_it_where_it_fits(kv_dtype: str) -> None:
    for size in (64, 80, 96, 128, 256):
        asked = query(kv_dtype=kv_dtype, head_size=size, uses_window=True)
        assert registry.choose("attention_backend", "auto", query=asked).name == "native_cpu"


@NEEDED
@pytest.mark.parametrize("window", [None, 1, 5, 20])
@pytest.mark.parametrize("heads", list(HEADS))
def test_steps_follow_each_other(heads: str, window: int | None) -> None:
    """Decodes, mixed and chunked steps over a poisoned cache."""
    num_heads, num_kv_heads = HEADS[heads]
    spec = replace(PLAIN, num_heads=num_heads, num_kv_heads=num_kv_heads, window_tokens=window)
    for block_tokens in (16, 32):
        for steps in STEPS.values():
            stage = Scene(made(), spec, num_rows=3, block_tokens=block_tokens)
            for counts in steps:
                torch.testing.assert_close(*stage.step(counts), rtol=0, atol=2e-5)


@NEEDED
def test_blocks_outside_the_window_may_go() -> None:
    """A block wholly outside the window is not read: its entry may name block 0."""
    spec = replace(PLAIN, window_tokens=4)
    stage = Scene(made(), spec, num_rows=1, block_tokens=16, max_row_tokens=600)
    stage.step([(0, 590)])
    stage.blocks[0][:36] = [0] * 36
    for count in (1, 2):
        torch.testing.assert_close(*stage.step([(0, count)]), rtol=0, atol=2e-5)


@NEEDED
def test_sinks_in_another_type() -> None:
    stage = Scene(made(), PLAIN, num_rows=2, block_tokens=16)
    stage.sinks = torch.tensor([0.5, -1.0, 3.0, 0.0], dtype=torch.bfloat16)
    torch.testing.assert_close(*stage.step([(0, 5), (1, 1)]), rtol=0, atol=2e-5)


@NEEDED
def test_an_int8_cache_has_room_for_its_scales() -> None:
    layer = KVLayer(name="a", num_kv_heads=2, head_size=32, dtype="int8")
    num_bytes = 16 * layer.bytes_per_token(1)
    assert num_bytes == 16 * 2 * 2 * (32 + 4)
    layout = KVLayout(
        groups=(KVGroup(layers=("a",)),),
        num_tensors=1,
        num_blocks=3,
        block_tokens=16,
        block_bytes=num_bytes,
    )
    memory = allocate_tensors(layout, torch.device("cpu"))
    cache = layer_caches(layout, [layer], made(), memory)["a"]
    assert cache.dtype == torch.int8 and cache.nbytes == 3 * num_bytes


@NEEDED
@pytest.mark.parametrize("name", MODELS)
def test_a_model_computes_what_transformers_does(name: str, tmp_path: Path) -> None:
    """Prefill, chunks and decode of two rows beside each other."""
    import transformers

    path = write_tiny_checkpoint(tmp_path, name, **MODELS[name])
    theirs = transformers.AutoModelForCausalLM.from_pretrained(
        path, dtype=torch.float32, attn_implementation="eager"
    ).eval()
    draw = torch.Generator().manual_seed(3)
    rows = [torch.randint(3, 60, (count,), generator=draw).tolist() for count in (37, 18)]
    model = PagedModel(load_model(path), backend=made(), block_tokens=16)
    found: list[list[torch.Tensor]] = [[], []]
    for first, second in (((0, 20), (0, 1)), ((20, 21), (1, 17)), ((21, 37), (17, 18))):
        pieces = model.forward([(0, rows[0][slice(*first)]), (1, rows[1][slice(*second)])])
        for row, piece in enumerate(pieces):
            found[row].append(piece)
    for row, tokens in enumerate(rows):
        with torch.inference_mode():
            wanted = theirs(torch.tensor([tokens])).logits[0]
        assert (torch.cat(found[row]) - wanted).abs().max() <= 1e-4
