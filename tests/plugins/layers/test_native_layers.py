"""Layers on the native CPU library compute what the same layers compute in torch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from dovetail.interfaces.model import BuildContext
from dovetail.layers import embedding, norm
from dovetail.layers.attention import rotary
from dovetail_kernels.cpu.library import library, missing_reason
from dovetail_testing.contract import model_spec
from dovetail_testing.tiny.transformer import PlainWeights

pytestmark = pytest.mark.skipif(library() is None, reason=str(missing_reason()))

HEADS, KV_HEADS, HEAD_SIZE, SIZE = 4, 2, 24, 100


def context(**fields: Any) -> BuildContext:
    spec = model_spec(head_size=HEAD_SIZE, max_position_tokens=64, dtype="float32", **fields)
    return BuildContext(model=spec, quant=PlainWeights(None, spec), device="cpu")


def both(monkeypatch: pytest.MonkeyPatch, module: Any, build: Callable[[], Any]) -> tuple[Any, Any]:
    """Return a layer on the native library and its twin in torch."""
    native = build()
    with monkeypatch.context() as patch:
        patch.setattr(module, "runs_natively", lambda op, context: False)
        return native, build()


def fill(native: nn.Module, plain: nn.Module) -> None:
    for i, (one, other) in enumerate(zip(native.parameters(), plain.parameters(), strict=True)):
        values = torch.randn(one.shape, generator=torch.Generator().manual_seed(i))
        one.data.copy_(values)
        other.data.copy_(values)


def rows(count: int, size: int = SIZE, seed: int = 9) -> torch.Tensor:
    return torch.randn(count, size, generator=torch.Generator().manual_seed(seed))


def assert_near(ours: torch.Tensor, theirs: torch.Tensor) -> None:
    assert ours.shape == theirs.shape
    assert ours.dtype == theirs.dtype
    assert (ours - theirs).abs().max() <= 1e-6 * theirs.abs().max()


@pytest.mark.parametrize("kind", [norm.RMSNorm, norm.GemmaRMSNorm])
@pytest.mark.parametrize("tokens", [1, 40])
def test_rms_norm(monkeypatch: pytest.MonkeyPatch, kind: type[norm.RMSNorm], tokens: int) -> None:
    native, plain = both(monkeypatch, norm, lambda: kind(context(), SIZE, eps=1e-6))
    fill(native, plain)
    x, delta, residual = rows(tokens), rows(tokens, seed=1), rows(tokens, seed=2)
    assert_near(native(x), plain(x))
    assert_near(native(x, residual=residual), plain(x, residual=residual))
    one, other = x.clone(), x.clone()
    assert_near(native(one, delta=delta), plain(other, delta=delta))
    assert torch.equal(one, x + delta)
    assert torch.equal(other, one)
    heads = rows(tokens, 2 * SIZE).unflatten(-1, (2, SIZE))
    assert_near(native(heads), plain(heads))


@pytest.mark.parametrize("bias", [True, False])
def test_layer_norm(monkeypatch: pytest.MonkeyPatch, bias: bool) -> None:
    def build() -> norm.LayerNorm:
        return norm.LayerNorm(context(), SIZE, eps=1e-5, bias=bias)

    native, plain = both(monkeypatch, norm, build)
    fill(native, plain)
    x, delta = rows(7), rows(7, seed=1)
    assert_near(native(x), plain(x))
    one, other = x.clone(), x.clone()
    assert_near(native(one, delta=delta), plain(other, delta=delta))
    assert torch.equal(one, other)


@pytest.mark.parametrize("kind", [None, norm.RMSNorm, norm.GemmaRMSNorm])
@pytest.mark.parametrize("share", [1.0, 0.5])
def test_heads(
    monkeypatch: pytest.MonkeyPatch, kind: type[norm.RMSNorm] | None, share: float
) -> None:
    pytest.importorskip("dovetail_plugins")  # the rules of rope_type are its
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": share}
    built = context(hf_config={"rope_parameters": rope, "max_position_embeddings": 64})
    norms = [kind(built, HEAD_SIZE, eps=1e-6) if kind else None for _ in "qk"]
    for one in norms:
        if one is not None:
            fill(one, one)

    def build() -> rotary.HeadRotary:
        return rotary.HeadRotary(
            built,
            num_heads=HEADS,
            num_kv_heads=KV_HEADS,
            head_size=HEAD_SIZE,
            q_norm=norms[0],
            k_norm=norms[1],
        )

    native, plain = both(monkeypatch, rotary, build)
    table = rotary.Rotary(rotary.rope_settings(built), "cpu")
    positions = torch.tensor([0, 1, 63, 5, 5])
    qkv = rows(5, (HEADS + 2 * KV_HEADS) * HEAD_SIZE)
    ours = native(qkv.clone(), table(positions))
    for one, other in zip(ours, plain(qkv.clone(), table(positions)), strict=True):
        assert_near(one, other)
    alone = native(qkv[2:3].clone(), table(positions[2:3]))
    assert all(torch.equal(one[0], other[2]) for one, other in zip(alone, ours, strict=True))


def test_heads_without_a_rotation_are_normed_at_most() -> None:
    """Layers without positions are those of a few families."""
    built = context()
    q_norm = norm.RMSNorm(built, HEAD_SIZE, eps=1e-6)
    fill(q_norm, q_norm)
    heads = rotary.HeadRotary(
        built, num_heads=HEADS, num_kv_heads=KV_HEADS, head_size=HEAD_SIZE, q_norm=q_norm
    )
    qkv = rows(5, (HEADS + 2 * KV_HEADS) * HEAD_SIZE)
    sizes = [HEADS * HEAD_SIZE, KV_HEADS * HEAD_SIZE, KV_HEADS * HEAD_SIZE]
    q, k, v = qkv.clone().split(sizes, dim=-1)
    ours = heads(qkv, None)
    assert torch.equal(ours[0], q_norm(q.unflatten(-1, (-1, HEAD_SIZE))).flatten(-2))
    assert torch.equal(ours[1], k)
    assert torch.equal(ours[2], v)


@pytest.mark.parametrize("weight_dtype", ["", "bfloat16", "float16"])
def test_token_table(monkeypatch: pytest.MonkeyPatch, weight_dtype: str) -> None:
    def build() -> embedding.VocabParallelEmbedding:
        built = context(weight_dtype=weight_dtype)
        return embedding.VocabParallelEmbedding(built, 11, SIZE, factor=3.5)

    native, plain = both(monkeypatch, embedding, build)
    fill(native, plain)
    ids = torch.tensor([0, 10, 3, 3])
    assert torch.equal(native(ids), plain(ids))
    assert torch.equal(native(ids[::2]), plain(ids)[::2])


def test_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    def build() -> embedding.PositionEmbedding:
        return embedding.PositionEmbedding(context(), 9, SIZE, offset=2)

    native, plain = both(monkeypatch, embedding, build)
    fill(native, plain)
    assert torch.equal(native(torch.tensor([0, 8])), plain(torch.tensor([0, 8])))
