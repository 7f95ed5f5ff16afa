"""Scales of a KV cache in a checkpoint: every spelling finds its layer, other tensors go on."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.attention import AttentionSpec
from dovetail.interfaces.model import WeightMap
from dovetail.layers.attention import Attention
from dovetail.layers.attention.kv_scales import divert, set_scales, stored_tensors

SPEC = AttentionSpec(num_heads=2, num_kv_heads=1, head_size=16, scale=0.25)
MAP = WeightMap(
    prefixes=(("language.", "model."),),
    fused={"k_proj": ("qkv_proj", "k"), "v_proj": ("qkv_proj", "v"), "gate_proj": ("up", "gate")},
)
E4M3 = "float8_e4m3fn"
SPELLINGS = {
    "compressed-tensors": ("k_scale", "v_scale"),
    "older compressed-tensors": ("k_proj.output_scale", "v_proj.output_scale"),
    "modelopt": ("k_proj.k_scale", "v_proj.v_scale"),
    "fused": ("qkv_proj.k_scale", "qkv_proj.v_scale"),
    "as vLLM names its layer": ("attn.k_scale", "attn.v_scale"),
}


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.self_attn = nn.Module()
        self.self_attn.qkv_proj = nn.Linear(4, 4)
        self.self_attn.attn = Attention("", SPEC)
        self.mlp = nn.Linear(4, 4)


def model() -> nn.Module:
    outer = nn.Module()
    outer.model = nn.Module()
    outer.model.layers = nn.ModuleList([Layer(), Layer()])
    return outer


def load(module: nn.Module, tensors: dict[str, torch.Tensor]) -> list[str]:
    """Return the names that were not taken for scales."""
    return [name for name, _ in divert(module, MAP, tensors.items())]


def layers(module: nn.Module) -> list[Attention]:
    return [m for m in module.modules() if isinstance(m, Attention)]


def scales(module: nn.Module, dtype: str = E4M3) -> list[tuple[float, float]]:
    set_scales(layers(module), dtype)
    return [(layer.spec.k_scale, layer.spec.v_scale) for layer in layers(module)]


def second(names: dict[str, float | list[float]]) -> nn.Module:
    """Return a model whose second layer has these scales."""
    module = model()
    tensors = {f"model.layers.1.self_attn.{k}": torch.tensor(v) for k, v in names.items()}
    assert load(module, tensors) == []
    return module


@pytest.mark.parametrize("spelling", SPELLINGS)
def test_every_spelling(spelling: str) -> None:
    key, value = SPELLINGS[spelling]
    assert scales(second({key: [0.5], value: 0.25})) == [(1.0, 1.0), (0.5, 0.25)]


def test_one_scale_may_stand_for_both() -> None:
    assert scales(second({"kv_scale": 0.5}))[1] == (0.5, 0.5)
    assert scales(second({"k_scale": 0.5}))[1] == (0.5, 0.5)
    assert scales(second({"kv_scale": 0.5, "v_scale": 0.125}))[1] == (0.5, 0.125)


def test_scales_of_anything_else_go_on_to_the_layers() -> None:
    module = model()
    foreign = (
        "model.layers.0.mlp.k_scale",
        "model.layers.0.mlp.gate_proj.output_scale",
        "model.layers.0.self_attn.qkv_proj.weight_scale",
        "model.layers.7.self_attn.k_scale",
        "k_scale",
    )
    ours = ("language.layers.0.self_attn.k_scale", "model.layers.0.self_attn.q_scale")
    given = {name: torch.tensor(2.0) for name in (*foreign, *ours)}
    assert load(module, given) == list(foreign)
    assert scales(module) == [(2.0, 2.0), (1.0, 1.0)]


def test_other_caches_have_none() -> None:
    module = second({"k_scale": -1.0, "v_scale": [0.5, 0.25]})
    for dtype in ("bfloat16", "float32", "int8"):
        assert scales(module, dtype) == [(1.0, 1.0)] * 2


def test_what_was_taken_can_be_written_and_taken_again() -> None:
    first = second({"k_scale": 0.5, "v_proj.output_scale": 0.25})
    written = dict(stored_tensors(first))
    again = model()
    assert load(again, written) == []
    assert scales(again) == scales(first) == [(1.0, 1.0), (0.5, 0.25)]


@pytest.mark.parametrize("wrong", [0.0, -0.5, float("nan"), float("inf"), []])
@pytest.mark.parametrize("name", ["k_scale", "v_scale", "kv_scale"])
def test_what_is_no_scale_is_named(name: str, wrong: float | list[float]) -> None:
    whole = {"k_scale": 1.0} if name == "v_scale" else {}
    with pytest.raises(ConfigError, match=rf"model\.layers\.1\.self_attn\.{name} "):
        scales(second({**whole, name: wrong}))


def test_scales_that_cannot_be_kept() -> None:
    with pytest.raises(ConfigError, match="k_scale holds 2 scales"):
        scales(second({"k_scale": [0.5, 0.25]}))
    assert scales(second({"k_scale": [0.5, 0.5]}))[1] == (0.5, 0.5)
    with pytest.raises(ConfigError, match="v_scale needs a k_scale"):
        scales(second({"v_scale": 0.5}))
