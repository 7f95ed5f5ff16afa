"""Rotary frequencies equal those of transformers for every rule, in both spellings of a config."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from dovetail.errors import ConfigError
from dovetail.interfaces.model import BuildContext
from dovetail.layers.attention.rotary import Rotary, apply_rotary, rope_settings
from dovetail_testing.contract import model_spec
from dovetail_testing.tiny.transformer import PlainWeights

pytest.importorskip("dovetail_plugins")  # the rules of rope_type are its

pytestmark = pytest.mark.any_isa  # torch on both sides
HEAD_SIZE, POSITIONS = 16, 64
RULE_NUMBERS: dict[str, dict[str, Any]] = {
    "default": {},
    "linear": {"factor": 4.0},
    "dynamic": {"factor": 2.0},
    "llama3": {
        "factor": 8.0,
        "low_freq_factor": 1.0,
        "high_freq_factor": 4.0,
        "original_max_position_embeddings": 32,
    },
    "yarn": {"factor": 4.0, "original_max_position_embeddings": 16},
    "proportional": {"partial_rotary_factor": 0.5, "factor": 2.0},
    "longrope": {
        "short_factor": [1.0 + 0.1 * i for i in range(8)],
        "long_factor": [2.0 + 0.5 * i for i in range(8)],
        "original_max_position_embeddings": 32,
    },
}
MSCALE = {"factor": 4.0, "original_max_position_embeddings": 16, "mscale": 0.7}


def context(config: dict[str, Any], max_tokens: int | None = None) -> BuildContext:
    spec = model_spec(
        hf_config={"max_position_embeddings": POSITIONS, **config},
        head_size=HEAD_SIZE,
        max_position_tokens=POSITIONS,
    )
    quant = PlainWeights(None, spec)
    return BuildContext(model=spec, quant=quant, device="cpu", max_tokens=max_tokens)


def frequencies(made: BuildContext) -> tuple[torch.Tensor, float]:
    """Return what the rule of a config comes to."""
    settings = rope_settings(made)
    return settings.frequencies(settings)


def theirs(rope: dict[str, Any], seq_len: int) -> tuple[torch.Tensor, float]:
    from transformers import LlamaConfig
    from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

    config = LlamaConfig(
        hidden_size=64,
        num_attention_heads=4,
        max_position_embeddings=POSITIONS,
        rope_parameters=rope,
    )
    return ROPE_INIT_FUNCTIONS[rope["rope_type"]](config, "cpu", seq_len=seq_len)


@pytest.mark.parametrize("served", [32, 64, 200])
@pytest.mark.parametrize("rule", [r for r in RULE_NUMBERS if r != "default"])
def test_frequencies_equal_transformers(rule: str, served: int) -> None:
    rope = {"rope_type": rule, "rope_theta": 5000.0, **RULE_NUMBERS[rule]}
    ours, our_scale = frequencies(context({"rope_parameters": rope}, served))
    want, scale = theirs(rope, served)
    torch.testing.assert_close(ours, want, rtol=1e-5, atol=1e-7)
    assert our_scale == pytest.approx(scale)


def test_ntk_is_as_published() -> None:
    """No class of transformers has it: a base of `factor` times as much, and angles less by the
    root of `factor` that belongs to one pair; mixed, divisors exp(a m^b) that end at the factor."""
    rope: dict[str, Any] = {"rope_type": "ntk", "rope_theta": 5000.0, "factor": 4.0}
    ours, scale = frequencies(context({"rope_parameters": rope}))
    pairs = torch.arange(HEAD_SIZE // 2)
    wanted = 4.0 ** (-2 / HEAD_SIZE) / 20_000.0 ** (2 * pairs / HEAD_SIZE)
    torch.testing.assert_close(ours, wanted)
    mixed, _ = frequencies(context({"rope_parameters": {**rope, "mixed_b": 0.6}}))
    plain = 5000.0 ** -(2 * pairs / HEAD_SIZE)
    assert scale == 1.0 and mixed[-1] == pytest.approx(plain[-1] / 4.0)
    assert bool((mixed < plain).all()) and mixed[0] > plain[0] / 2


@pytest.mark.parametrize("extra", [{"mscale_all_dim": 0.4}, {"attention_factor": 1.5}, {}])
def test_yarn_scale_equals_transformers(extra: dict[str, float]) -> None:
    rope = {"rope_type": "yarn", "rope_theta": 1e4, **MSCALE, **extra}
    ours = frequencies(context({"rope_parameters": rope}))
    assert ours[1] == pytest.approx(theirs(rope, 64)[1])


def test_old_and_new_spelling_are_one() -> None:
    numbers = RULE_NUMBERS["llama3"]
    new = {"rope_parameters": {"rope_type": "llama3", "rope_theta": 7e5, **numbers}}
    old = {"rope_theta": 7e5, "rope_scaling": {"type": "llama3", **numbers}}
    one, two = (frequencies(context(c)) for c in (new, old))
    assert torch.equal(one[0], two[0])


def test_partial_rotation_leaves_the_rest_alone() -> None:
    rope = {"rope_type": "default", "rope_theta": 1e4, "partial_rotary_factor": 0.5}
    rotary = Rotary(rope_settings(context({"rope_parameters": rope})), "cpu")
    x = torch.randn(5, 2 * HEAD_SIZE)
    out = apply_rotary(x, rotary(torch.arange(5)), HEAD_SIZE).unflatten(-1, (2, HEAD_SIZE))
    heads = x.unflatten(-1, (2, HEAD_SIZE))
    assert torch.equal(out[..., 8:], heads[..., 8:])
    assert not torch.allclose(out[1:, :, :8], heads[1:, :, :8])
    torch.testing.assert_close(out[..., :8].norm(dim=-1), heads[..., :8].norm(dim=-1))


def test_an_unknown_rule_is_refused() -> None:
    with pytest.raises(ConfigError, match="spiral"):
        rope_settings(context({"rope_scaling": {"rope_type": "spiral"}}))


def test_missing_numbers_are_named() -> None:
    settings = rope_settings(context({"rope_scaling": {"rope_type": "linear"}}))
    with pytest.raises(ConfigError, match="factor"):
        settings.frequencies(settings)
