"""Settings of draft heads: whose layers a published class has, and what is refused, and why."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.errors import ConfigError
from dovetail.interfaces.drafter import WorkerDrafter
from dovetail_plugins.drafters._mtp_layouts import LAYOUTS, REFUSED, layout_of
from dovetail_plugins.drafters.assistant import Assistant
from dovetail_plugins.drafters.dflash import DFlash
from dovetail_plugins.drafters.eagle import Eagle
from dovetail_plugins.drafters.eagle3 import Eagle3
from dovetail_testing.contract import model_spec

LLAMA, LATENT = "LlamaForCausalLM", "DeepseekV3ForCausalLM"
TARGET = model_spec(vocab_size=64)


@pytest.mark.parametrize(
    ("plugin", "name", "family"),
    [
        (Eagle, "EAGLEModel", LLAMA),
        (Eagle, "EagleMistralForCausalLM", "MistralForCausalLM"),
        (Eagle, "LlamaForCausalLMEagle", LLAMA),
        (Eagle3, "LlamaForCausalLMEagle3", LLAMA),
        (Eagle3, "Eagle3LlamaForCausalLM", LLAMA),
        (Eagle3, "Eagle3Speculator", LLAMA),
        (Eagle3, "Eagle3DraftModel", LLAMA),
        (Eagle3, "Eagle3MiniMaxM2ForCausalLM", LLAMA),
        (Eagle3, "Eagle3Qwen3vlForCausalLM", LLAMA),
        (Eagle3, "Eagle3DeepseekV2ForCausalLM", LATENT),
        (Eagle3, "Eagle3DeepseekV3ForCausalLM", LATENT),
    ],
)
def test_published_classes_have_a_familys_layers(
    plugin: type[WorkerDrafter], name: str, family: str
) -> None:
    raw = {"architectures": [name], "transformer_layer_config": {"hidden_size": 8}}
    found = plugin.settings(raw, TARGET)
    assert found["architectures"] == [family]
    assert found["hidden_size"] == 8 and "transformer_layer_config" not in found


@pytest.mark.parametrize(
    ("plugin", "raw", "why"),
    [
        (Eagle3, {"architectures": ["PEagleDraftModel"]}, "in one pass"),
        (Eagle, {"architectures": ["PeagleLlamaForCausalLM"]}, "in one pass"),
        (Assistant, {"model_type": "gemma4"}, "is not an assistant"),
        (DFlash, {"architectures": ["DFlash2DraftModel"], "mask_token_id": 1}, "DFlash 2"),
        (DFlash, {"architectures": ["DFlashDraftModel"]}, "does not say mask_token_id"),
        (DFlash, {"mask_token_id": 1, "markov_rank": 8, "markov_head_type": "rnn"}, "a state"),
    ],
)
def test_heads_of_another_sort_are_refused(
    plugin: type[WorkerDrafter], raw: dict[str, Any], why: str
) -> None:
    with pytest.raises(ConfigError, match=why):
        plugin.settings(raw, TARGET)


@pytest.mark.parametrize(
    ("config", "why"),
    [
        ({"model_type": "kimi_k2", "num_nextn_predict_layers": 0}, "has no layers"),
        ({"model_type": "gemma4"}, "name that as model"),
        ({"model_type": "step3p7"}, "runs over transformers"),
        ({"model_type": "llama"}, "are not supported"),
    ],
)
def test_a_model_without_a_layer_that_drafts_is_told_why(config: dict[str, Any], why: str) -> None:
    with pytest.raises(ConfigError, match=why):
        layout_of(config)


def test_no_type_is_both_known_and_refused() -> None:
    assert not set(LAYOUTS) & set(REFUSED)


def test_a_block_that_keeps_a_state_does_not_draft() -> None:
    config = {"num_nextn_predict_layers": 1, "mtp_hybrid_override_pattern": "M*"}
    with pytest.raises(ConfigError, match="keeps a state"):
        LAYOUTS["nemotron_h"].settings_of(config)


@pytest.mark.parametrize(
    ("raw", "layers", "own_first"),
    [
        ({"dflash_config": {"target_layer_ids": [1, 5]}}, {"target_layer_ids": [1, 5]}, False),
        (
            {"num_target_layers": 52, "num_hidden_layers": 5},
            {"target_layer_ids": [1, 13, 25, 37, 49]},
            False,
        ),
        (
            {"architectures": ["Qwen3DSparkModel"], "target_layer_ids": [3]},
            {"target_layer_ids": [3]},
            True,
        ),
        (
            {"speculators_model_type": "dspark", "aux_hidden_state_layer_ids": [2, 4]},
            {"aux_hidden_state_layer_ids": [2, 4]},
            True,
        ),
        ({"aux_hidden_state_layer_ids": [2], "sample_from_anchor": True}, {}, True),
    ],
)
def test_block_drafters_have_one_set_of_settings(
    raw: dict[str, Any], layers: dict[str, Any], own_first: bool
) -> None:
    """Of z-lab's files, deepseek-ai's and speculators'. The evenly spaced layers are those of a
    published config.json of 52 target layers."""
    found = DFlash.settings({"mask_token_id": 1, **raw}, TARGET)
    assert found["architectures"] == ["Qwen3ForCausalLM"]
    assert found["sample_from_anchor"] is own_first
    assert layers.items() <= found.items()
