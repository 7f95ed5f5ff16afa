"""--speculative-config: each key reaches its place, and what cannot be is refused by name."""

from __future__ import annotations

import json
import logging
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli.main import main
from dovetail.config.config import Config
from dovetail.config.rules.drafts.methods import method_for
from dovetail.config.rules.drafts.speculation import acceptance_of, asked_drafter, draft_spec
from dovetail.errors import ConfigError, UnknownPlugin
from dovetail.interfaces.data.spec import DraftSpec, Selection
from dovetail_testing.contract import model_spec
from dovetail_testing.simulate import SimSettings

pytest.importorskip("dovetail_plugins")

CONTINUOUS = Selection(
    kind="scheduler",
    name="continuous",
    target="dovetail_plugins.schedulers.continuous:ContinuousScheduler",
)
FAKE = Selection(
    kind="scheduler", name="fake", target="dovetail_testing.fakes.scheduler:FakeScheduler"
)


def resolved(
    asked: dict[str, Any], scheduler: Selection = CONTINUOUS, **fields: Any
) -> DraftSpec | None:
    config = Config.from_fields({"speculative_config": asked, **fields})
    return draft_spec(config, model_spec(), SimSettings(max_step_tokens=24).schedule(), scheduler)


def test_nothing_asked_nobody_guesses() -> None:
    assert resolved({}) is None


def test_every_key_has_its_place() -> None:
    spec = resolved(
        {
            "method": "ngram",
            "num_speculative_tokens": "3",
            "prompt-lookup-max": 4,
            "disable_by_batch_size": 8,
            "max_model_len": 64,
            "quantization": None,
        },
        plugin_options={"drafter": {"prompt_lookup_min": 3}},
    )
    assert spec is not None
    assert (spec.drafter.name, spec.max_tokens, spec.pause_above_requests) == ("ngram", 3, 8)
    assert spec.max_model_tokens == 64
    assert spec.drafter.options == {"prompt_lookup_min": 3, "prompt_lookup_max": 4}


@pytest.mark.parametrize(
    ("asked", "where", "text"),
    [
        ({"num_speculative_tokens": 3}, "method", "no method"),
        ({"method": "ngrams"}, "method", "ngram"),
        ({"method": "extract_hidden_states"}, "method", "drafts nothing"),
        ({"method": "custom_class"}, "method", "module:Class"),
        ({"method": 3}, "method", "not a name"),
        ({"method": "ngram", "num_speculative_tokens": 0}, "num_speculative_tokens", "out of"),
        ({"method": "ngram", "num_speculative_tokens": 24}, "num_speculative_tokens", "most 23"),
        ({"method": "ngram", "num_speculative_tokens": "x"}, "num_speculative_tokens", "int"),
        ({"method": "ngram", "lookup_max": 3}, "lookup_max", "prompt_lookup_max"),
        ({"method": "ngram", "prompt_lookup_max": 0}, "prompt_lookup_max", "below 1"),
        ({"method": "ngram", "disable_by_batch_size": -1}, "disable_by_batch_size", "out of"),
        ({"method": "ngram", "max_model_len": 0}, "max_model_len", "out of"),
        ({"method": "ngram", "model": "small"}, "model", "no draft model"),
        ({"method": "ngram", "quantization": "awq"}, "quantization", "no draft model"),
        ({"method": "ngram", "revision": "main"}, "revision", "no draft model"),
        ({"method": "ngram", "revision": 3}, "revision", "not a name"),
        ({"method": "ngram", "code_revision": "main"}, "code_revision", "leave it out"),
        ({"model": "/no/such/folder"}, "model", "/no/such/folder"),
        ({"method": "ngram", "disable_logprobs": "maybe"}, "disable_logprobs", "bool"),
    ],
)
def test_what_cannot_be_names_its_key(asked: dict[str, Any], where: str, text: str) -> None:
    with pytest.raises((ConfigError, UnknownPlugin)) as caught:
        resolved(asked)
    assert text in str(caught.value)
    assert caught.value.where == f"--speculative-config.{where}"


def test_a_scheduler_without_drafts_is_refused() -> None:
    with pytest.raises(ConfigError, match="does not plan drafts"):
        resolved({"method": "ngram"}, FAKE)


def test_the_command_line_takes_keys(capsys: pytest.CaptureFixture[str]) -> None:
    words = ["--speculative-config.method", "no-such", "--speculative-config", '{"x": 1}']
    assert main(["serve", *words]) == 2
    told = capsys.readouterr().err
    assert "--speculative-config.method" in told and "ngram" in told


def accepted_by(asked: dict[str, Any], **fields: Any) -> Selection | None:
    config = Config.from_fields({"speculative_config": asked, **fields})
    return acceptance_of(config.speculative, config.plugin)


def test_acceptance_is_exact_unless_asked_otherwise() -> None:
    assert accepted_by({}) is None
    usual = accepted_by({"method": "ngram"})
    assert usual is not None and (usual.name, usual.options) == ("rejection_sampler", {})
    chosen = accepted_by(
        {
            "method": "ngram",
            "acceptance_method": "typical_acceptance_sampler",
            "posterior_threshold": "0.2",
        },
        plugin_options={"acceptance": {"posterior_alpha": 0.5}},
    )
    assert chosen is not None and chosen.name == "typical_acceptance_sampler"
    assert chosen.options == {"posterior_threshold": 0.2, "posterior_alpha": 0.5}


@pytest.mark.parametrize(
    ("asked", "where", "text"),
    [
        ({"acceptance_method": "typical"}, "acceptance_method", "typical_acceptance_sampler"),
        ({"posterior_alpha": 0.3}, "posterior_alpha", "no such option"),
        (
            {"acceptance_method": "typical_acceptance_sampler", "posterior_threshold": 2},
            "posterior_threshold",
            "above 1",
        ),
    ],
)
def test_what_an_acceptance_cannot_be(asked: dict[str, Any], where: str, text: str) -> None:
    with pytest.raises((ConfigError, UnknownPlugin)) as caught:
        accepted_by({"method": "ngram", **asked})
    assert text in str(caught.value)
    assert caught.value.where == f"--speculative-config.{where}"


@pytest.mark.parametrize(
    ("asked", "told"),
    [
        ({"method": "ngram", "disable_logprobs": True}, "disable_logprobs has no effect: logprobs"),
        ({"method": "ngram", "disable_mqa_scorer": "true"}, "disable_mqa_scorer has no effect"),
        ({"disable_logprobs": True}, "disable_logprobs has no effect"),
        ({"method": "ngram", "moe_backend": "triton"}, "moe_backend has no effect: a drafter"),
        ({"attention_backend": "FLASH_ATTN"}, "attention_backend has no effect"),
        ({"method": "ngram", "draft_tensor_parallel_size": 1}, "has no model"),
        ({"acceptance_method": "rejection_sampler"}, "acceptance_method has no effect: nothing is"),
        ({"method": "ngram", "disable_logprobs": False}, ""),
    ],
)
def test_what_has_no_effect_says_why(
    asked: dict[str, Any], told: str, caplog: pytest.LogCaptureFixture
) -> None:
    with caplog.at_level(logging.INFO, logger="dovetail.config"):
        spec = resolved(asked)
    assert (spec is not None) == ("method" in asked)
    lines = [one for one in caplog.messages if "speculative" in one]
    assert len(lines) == bool(told) and all(told in one for one in lines)


@pytest.mark.parametrize("name", ["mtp", "deepseek_mtp", "step3p5_mtp", "gemma4_mtp"])
@pytest.mark.parametrize(("model", "drafter"), [(None, "mtp"), ("org/a-assistant", "assistant")])
def test_names_of_layers_of_the_models_own_mean_mtp(
    name: str, model: str | None, drafter: str
) -> None:
    """A drafter in another checkpoint is an assistant."""
    config = Config.from_fields({"speculative_config": {"method": name, "model": model}})
    asked = asked_drafter(config.model, config.load, config.speculative, config.plugin)
    assert asked is not None and asked.drafter.name == drafter


def test_the_models_own_name_is_no_other_checkpoint() -> None:
    speculative = {"method": "mtp", "model": "org/model"}
    config = Config.from_fields({"model": "org/model", "speculative_config": speculative})
    asked = asked_drafter(config.model, config.load, config.speculative, config.plugin)
    assert asked is not None and asked.drafter.name == "mtp" and not asked.settings


LLAMA = {"model_type": "llama", "architectures": ["LlamaForCausalLM"], "num_hidden_layers": 1}


@pytest.mark.parametrize(
    ("config", "name", "method"),
    [
        (LLAMA, "org/small", "draft_model"),
        (LLAMA, "yuhuili/EAGLE-LLaMA3-Instruct-8B", "eagle"),
        (LLAMA | {"num_hidden_layers": 24}, "org/eagle-of-a-model", "draft_model"),
        (LLAMA | {"architectures": ["LlamaForCausalLMEagle3"]}, "org/head", "eagle3"),
        (LLAMA | {"architectures": ["EagleLlamaModel"]}, "org/head", "eagle"),
        (LLAMA | {"draft_vocab_size": 32000}, "org/head", "eagle3"),
        ({"model_type": "eagle", "architectures": ["EAGLEModel"]}, "", "eagle"),
        ({"speculators_model_type": "eagle3", "architectures": ["Eagle3Speculator"]}, "", "eagle3"),
        ({"model_type": "medusa", "architectures": ["MedusaModel"]}, "", "medusa"),
        ({"medusa_num_heads": 4, "medusa_num_layers": 1}, "", "medusa"),
        ({"architectures": ["MLPSpeculatorPreTrainedModel"]}, "", "mlp_speculator"),
        ({"model_type": "mlp_speculator"}, "", "mlp_speculator"),
        ({"model_type": "deepseek_mtp", "architectures": ["DeepSeekMTPModel"]}, "", "mtp"),
        ({"model_type": "gemma4_assistant"}, "google/gemma-4-E2B-it-assistant", "assistant"),
        ({"architectures": ["Eagle3DeepseekV2ForCausalLM"]}, "", "eagle3"),
    ],
)
def test_a_checkpoint_says_what_it_drafts_with(
    config: dict[str, Any], name: str, method: str
) -> None:
    assert method_for(config, name) == method


def test_a_model_alone_chooses_the_method(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In place of a model the words of older generations for looking up the prompt."""
    spec = resolved({"model": "[ngram]", "prompt_lookup_max": 3})
    assert spec is not None and spec.drafter.name == "ngram"
    (tmp_path / "config.json").write_text(json.dumps({"model_type": "no_such_head"} | LLAMA))
    with caplog.at_level(logging.INFO, "dovetail.config"), suppress(ConfigError):
        resolved({"model": str(tmp_path)})
    assert f"method auto: draft_model, by the config of {tmp_path}." in caplog.text
    same = resolved({"method": "ngram_gpu"})
    assert same is not None and same.drafter.name == "ngram"
