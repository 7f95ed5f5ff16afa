"""--allow-long-max-model-len: beyond the checkpoint's own length, where the model can go there."""

from __future__ import annotations

import logging

import pytest

from dovetail.config.checkpoint.context_length import model_tokens
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec


def model() -> ModelSpec:
    return ModelSpec(
        path="x",
        architecture="X",
        hf_config={},
        dtype="float32",
        vocab_size=8,
        hidden_size=8,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_size=8,
        max_position_tokens=1024,
    )


def test_only_with_the_switch_and_with_a_warning(caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ConfigError, match="more than the checkpoint's 1024") as caught:
        model_tokens(2048, model())
    assert "--allow-long-max-model-len" in str(caught.value.fix)
    with caplog.at_level(logging.WARNING, "dovetail"):
        assert model_tokens(2048, model(), may_exceed=True) == 2048
    assert "more than the 1024" in caplog.text
    assert model_tokens(512, model(), may_exceed=True) == 512
    assert model_tokens(None, model(), may_exceed=True) == 1024
