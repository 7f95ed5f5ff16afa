"""Outlier channels of keys cost a KV cache of 8 bits no more than its bits do.

Two channels of the keys are 30 times larger than the others, by rows of k_proj (llama, in one of
two heads) or by k_norm (qwen3), as trained models have them (Hooper et al., KVQuant, 2024).
Logprobs through the engine, by default options, against transformers' float32 attention: roots of
mean squares, in deviations of the logits. The roundings of keys and values, simulated in
transformers:

| | int8 of rotated keys | int8 | int8, one scale | e4m3 | e5m2 |
|---|---|---|---|---|---|
| llama | 0.014 | 0.021 | 0.048 | 0.062 | 0.124 |
| qwen3 | 0.014 | 0.027 | 0.048 | 0.069 | 0.152 |
| bound | 0.018 | | | 0.09 | 0.19 |
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from dovetail import LLM
from dovetail_kernels.cpu.library import library, missing_reason
from dovetail_kernels.paged_attention.rotation import block_of, rotated_keys
from dovetail_testing.tiny.families import VOCAB_SIZE
from dovetail_testing.tiny.models import write_tiny_checkpoint
from support.dequantized import found_logprobs, wanted_logprobs

pytestmark = pytest.mark.skipif(library() is None, reason=missing_reason() or "")

HEAD_SIZE, HIDDEN = 64, 256
CHANNELS, FACTOR = [7, 39], 30.0
"""A pair that rotary embedding turns into each other."""
QUIET = 0.15
"""Queries are made smaller, so that the softmax weighs several keys."""
BOUNDS = {"int8": 0.018, "fp8_e4m3": 0.09, "fp8_e5m2": 0.19}
SAME = 0.1
"""By how much an engine's error may be another than the simulation's."""
Change = Callable[[torch.Tensor], torch.Tensor]


def int8(x: torch.Tensor) -> torch.Tensor:
    """Return keys or values in int8, a scale a token and head. Shapes: [1, K, T, D]"""
    scale = (x.abs().amax(-1, keepdim=True) / 127).clamp(min=1e-20)
    return (x / scale).round() * scale


def rotated_int8(x: torch.Tensor) -> torch.Tensor:
    """Return the same of what is rotated, and turned back."""
    return rotated_keys(int8(rotated_keys(x))) / block_of(x.shape[-1])


def one_scale(x: torch.Tensor) -> torch.Tensor:
    """Return the same, one scale for all of them."""
    scale = x.abs().max() / 127
    return (x / scale).round() * scale


def float8(dtype: torch.dtype) -> Change:
    limit = torch.finfo(dtype).max
    return lambda x: x.clamp(-limit, limit).to(dtype).float()


KEPT: dict[str, Change] = {
    "int8": rotated_int8,
    "fp8_e4m3": float8(torch.float8_e4m3fn),
    "fp8_e5m2": float8(torch.float8_e5m2),
}


def prompts() -> list[list[int]]:
    draw = torch.Generator().manual_seed(5)
    return [torch.randint(3, VOCAB_SIZE, (n,), generator=draw).tolist() for n in (40, 30)]


@pytest.fixture(scope="module", params=["LlamaForCausalLM", "Qwen3ForCausalLM"])
def planted(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return a checkpoint with outlier channels in its keys."""
    name = str(request.param)
    path = write_tiny_checkpoint(
        tmp_path_factory.mktemp("keys") / name, name, hidden_size=HIDDEN, intermediate_size=HIDDEN,
        head_dim=HEAD_SIZE,
    )  # fmt: skip
    file = path / "model.safetensors"
    tensors = load_file(file)
    quiet = {"q_proj": 0.3 * QUIET, "k_proj": 0.3} if "Llama" in name else {"q_norm": QUIET}
    for key, tensor in tensors.items():
        leaf = key.split(".")[-2]
        tensor *= quiet.get(leaf, 1.0)
        if leaf == ("k_proj" if "Llama" in name else "k_norm"):
            tensor[CHANNELS] *= FACTOR
    save_file(tensors, file, metadata={"format": "pt"})
    return path


@pytest.fixture(scope="module")
def theirs(planted: Path) -> Callable[[Change], tuple[torch.Tensor, float]]:
    """Return what gives transformers' logprobs, and the deviation of its logits, over changed keys
    and values."""
    import transformers
    from transformers.models.llama.modeling_llama import eager_attention_forward

    current: list[Change] = []

    def attend(module: Any, query: Any, key: Any, value: Any, *args: Any, **kwargs: Any) -> Any:
        (change,) = current
        return eager_attention_forward(module, query, change(key), change(value), *args, **kwargs)

    transformers.AttentionInterface.register("kept", attend)
    transformers.AttentionMaskInterface.register("kept", transformers.masking_utils.eager_mask)
    model = transformers.AutoModelForCausalLM.from_pretrained(
        planted, dtype=torch.float32, attn_implementation="kept"
    ).eval()

    def logprobs(change: Change) -> tuple[torch.Tensor, float]:
        current[:] = [change]
        return wanted_logprobs(model, prompts())

    return logprobs


def error(found: torch.Tensor, wanted: torch.Tensor, deviation: float) -> float:
    return float((found - wanted).square().mean().sqrt() / deviation)


def found(path: Path, kv_dtype: str) -> torch.Tensor:
    with LLM(
        model=str(path), dtype="float32", kv_cache_dtype=kv_dtype, num_gpu_blocks_override=32,
        block_size=16, max_model_len=64, max_logprobs=-1, use_tqdm_on_load=False,
    ) as llm:  # fmt: skip
        return found_logprobs(llm, prompts())


def test_a_float_cache_rounds_nothing(planted: Path, theirs: Any) -> None:
    wanted, deviation = theirs(lambda x: x)
    assert error(found(planted, "auto"), wanted, deviation) <= 1e-5


@pytest.mark.parametrize("kv_dtype", list(BOUNDS))
def test_by_default(kv_dtype: str, planted: Path, theirs: Any) -> None:
    wanted, deviation = theirs(lambda x: x)
    got = error(found(planted, kv_dtype), wanted, deviation)
    assert got <= BOUNDS[kv_dtype]
    simulated = error(theirs(KEPT[kv_dtype])[0], wanted, deviation)
    assert got == pytest.approx(simulated, rel=SAME)


@pytest.mark.parametrize(("change", "more"), [(int8, 1.1), (one_scale, 2.0)])
def test_coarser_ways_are_beyond_the_bound(theirs: Any, change: Change, more: float) -> None:
    wanted, deviation = theirs(lambda x: x)
    assert error(theirs(change)[0], wanted, deviation) >= more * BOUNDS["int8"]
