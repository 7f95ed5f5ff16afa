"""Flags of earlier generations: what each value means today, is settled by, or fails for."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dovetail.cli.parser import Parser
from dovetail.config.compat.deprecated_flags import (
    MAPPED,
    DeprecatedFlags,
    deprecated_flags,
    translate,
)
from dovetail.config.config import Config
from dovetail.config.parse.environment import variable_of
from dovetail.config.parse.flags import add_flags, config_of
from dovetail.config.sections.field import flags_of
from dovetail.errors import ConfigError

SPECULATION = "speculative_config"
GRAMMAR = "structured_outputs_config"
EXPERTS = "eplb_config"
MEANT: list[tuple[str, Any, dict[str, Any]]] = [
    ("disable_log_requests", True, {"enable_log_requests": False}),
    ("disable_log_requests", False, {"enable_log_requests": True}),
    ("task", "auto", {}),
    ("task", "generate", {"runner": "generate"}),
    ("task", "embed", {"runner": "pooling", "convert": "embed"}),
    ("task", "embedding", {"runner": "pooling", "convert": "embed"}),
    ("task", "score", {"runner": "pooling"}),
    ("task", "classify", {"runner": "pooling", "convert": "classify"}),
    ("task", "reward", {"runner": "pooling", "convert": "reward"}),
    ("task", "draft", {"runner": "draft"}),
    ("task", "transcription", {"runner": "generate"}),
    ("worker_use_ray", True, {"distributed_executor_backend": "ray"}),
    ("worker_use_ray", False, {}),
    ("enable_reasoning", True, {}),
    ("enable_reasoning", False, {"reasoning_parser": "none"}),
    ("guided_decoding_backend", "xgrammar", {GRAMMAR: {"backend": "xgrammar"}}),
    ("guided_decoding_disable_fallback", True, {GRAMMAR: {"disable_fallback": True}}),
    ("guided_decoding_disable_any_whitespace", True, {GRAMMAR: {"disable_any_whitespace": True}}),
    (
        "guided_decoding_disable_additional_properties",
        True,
        {GRAMMAR: {"disable_additional_properties": True}},
    ),
    ("override_pooler_config", {"normalize": True}, {"pooler_config": {"normalize": True}}),
    ("speculative_model", "[ngram]", {SPECULATION: {"method": "ngram"}}),
    ("speculative_model", "small", {SPECULATION: {"model": "small"}}),
    ("num_speculative_tokens", 3, {SPECULATION: {"num_speculative_tokens": 3}}),
    ("ngram_prompt_lookup_max", 4, {SPECULATION: {"prompt_lookup_max": 4}}),
    ("ngram_prompt_lookup_min", 2, {SPECULATION: {"prompt_lookup_min": 2}}),
    ("speculative_disable_by_batch_size", 8, {SPECULATION: {"disable_by_batch_size": 8}}),
    ("speculative_model_quantization", "awq", {SPECULATION: {"quantization": "awq"}}),
    (
        "speculative_draft_tensor_parallel_size",
        2,
        {SPECULATION: {"draft_tensor_parallel_size": 2}},
    ),
    ("speculative_max_model_len", 64, {SPECULATION: {"max_model_len": 64}}),
    ("disable_logprobs_during_spec_decoding", True, {SPECULATION: {"disable_logprobs": True}}),
    (
        "spec_decoding_acceptance_method",
        "typical_acceptance_sampler",
        {SPECULATION: {"acceptance_method": "typical_acceptance_sampler"}},
    ),
    ("speculative_disable_mqa_scorer", True, {SPECULATION: {"disable_mqa_scorer": True}}),
    (
        "typical_acceptance_sampler_posterior_threshold",
        0.2,
        {SPECULATION: {"posterior_threshold": 0.2}},
    ),
    ("typical_acceptance_sampler_posterior_alpha", 0.4, {SPECULATION: {"posterior_alpha": 0.4}}),
    ("eplb_log_balancedness", True, {EXPERTS: {"log_balancedness": True}}),
    ("eplb_step_interval", 9, {EXPERTS: {"step_interval": 9}}),
    ("eplb_window_size", 9, {EXPERTS: {"window_size": 9}}),
    ("num_redundant_experts", 1, {EXPERTS: {"num_redundant_experts": 1}}),
    ("enable_multimodal_encoder_data_parallel", True, {"mm_encoder_tp_mode": "data"}),
    ("enable_multimodal_encoder_data_parallel", False, {}),
    ("disable_mm_preprocessor_cache", True, {"mm_processor_cache_gb": 0}),
    ("disable_mm_preprocessor_cache", False, {}),
    ("preemption_mode", "recompute", {"swap_space": 0.0}),
    ("preemption_mode", "swap", {"swap_space": 4.0}),
    (
        "qlora_adapter_name_or_path",
        "a/b",
        {"enable_lora": True, "lora_modules": ('{"name": "a/b", "path": "a/b"}',)},
    ),
]
"""Flag, value, fields of today."""

SETTLED: list[tuple[str, tuple[Any, ...], tuple[Any, ...]]] = [
    ("disable_cascade_attn", (True, False), ()),
    ("max_context_len_to_capture", (None, 8192, 4096), ()),
    ("max_seq_len_to_capture", (None, 32768), ()),
    ("num_lookahead_slots", (0, 5), ()),
    ("override_neuron_config", ({},), ({"a": 1},)),
    ("num_scheduler_steps", (1, 8), ()),
    ("multi_step_stream_outputs", (True, False), ()),
    ("scheduler_delay_factor", (0, 0.0, 0.5), ()),
    ("use_v2_block_manager", (True, False), ()),
    ("disable_async_output_proc", (False, True), ()),
    ("tokenizer_pool_size", (0, 2), ()),
    ("tokenizer_pool_type", ("ray", "threads"), ()),
    ("tokenizer_pool_extra_config", ({}, {"a": 1}), ()),
]
"""Flag, values that ask for what always happens, values that ask for something else."""


def test_every_older_flag_is_in_a_table() -> None:
    tabled = {row[0] for row in MEANT} | {row[0] for row in SETTLED}
    assert tabled == {flag.name for flag in flags_of(DeprecatedFlags)} == set(MAPPED)
    assert not {row[0] for row in MEANT} & {row[0] for row in SETTLED}


@pytest.mark.parametrize(("name", "value", "fields"), MEANT)
def test_what_a_value_means_today(name: str, value: Any, fields: dict[str, Any]) -> None:
    found, note = translate(name, value)
    assert found == fields
    assert note.startswith(f"{deprecated_flags()[name].spelling} is now --")
    config = Config.from_fields({name: value})
    assert config.notes == (note,)
    for target, meant in fields.items():
        assert config.value(target) == meant
        assert config.is_given(target)


@pytest.mark.parametrize(("name", "value", "fields"), MEANT)
def test_it_means_so_by_every_route(
    name: str, value: Any, fields: dict[str, Any], tmp_path: Path
) -> None:
    flag, file = deprecated_flags()[name], tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump({flag.spelling[2:]: value}), encoding="utf-8")
    text = value if isinstance(value, str) else json.dumps(value)
    parser = Parser(prog="dovetail serve", description="")
    add_flags(parser)
    for words, environ in (
        ([f"{flag.spelling}={text}"], {}),
        ([], {variable_of(flag): text}),
        (["--config", str(file)], {}),
    ):
        config = config_of(parser.parse(words), environ=environ)
        assert {target: config.value(target) for target in fields} == fields
        assert set(config.origins) == set(fields)


@pytest.mark.parametrize(("name", "passing", "failing"), SETTLED)
def test_what_is_settled(name: str, passing: tuple[Any, ...], failing: tuple[Any, ...]) -> None:
    spelling = deprecated_flags()[name].spelling
    for value in passing:
        config = Config.from_fields({name: value})
        assert config.origins == {}
        told = io.StringIO()
        config.tell(told)
        assert told.getvalue().startswith(f"dovetail: note: {spelling} changes nothing: ")
    for value in failing:
        with pytest.raises(ConfigError) as caught:
            Config.from_fields({name: value})
        assert caught.value.where == spelling
        assert MAPPED[name].today.endswith(caught.value.what.rstrip("."))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"task": "embed", "runner": "generate"}, "--task: asks for 'pooling', but --runner"),
        ({"task": "dance"}, '--task: "dance" is not a task'),
        ({"enable_reasoning": False, "reasoning_parser": "qwen3"}, "--enable-reasoning: asks for"),
        (
            {"num_speculative_tokens": 3, SPECULATION: {"num_speculative_tokens": 4}},
            "--num-speculative-tokens: asks for 3",
        ),
        ({"disable_log_requests": True, "enable_log_requests": True}, "--disable-log-requests"),
    ],
)
def test_two_names_that_disagree(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        Config.from_fields(fields)
    assert message in str(caught.value)


@pytest.mark.parametrize(
    ("value", "fields"),
    [
        ("xgrammar", {"backend": "xgrammar"}),
        ("guidance:no-fallback", {"backend": "guidance", "disable_fallback": True}),
        (
            "xgrammar:disable-any-whitespace,no-additional-properties",
            {
                "backend": "xgrammar",
                "disable_any_whitespace": True,
                "disable_additional_properties": True,
            },
        ),
        ("my.module:Backend", {"backend": "my.module:Backend"}),
    ],
)
def test_a_backend_with_its_options(value: str, fields: dict[str, Any]) -> None:
    found, _ = translate("guided_decoding_backend", value)
    assert found == {"structured_outputs_config": fields}


def test_several_older_names_fill_one_object() -> None:
    given = {"speculative_model": "[ngram]", "num_speculative_tokens": 3}
    config = Config.from_fields(given | {SPECULATION: {"prompt_lookup_max": 2}})
    wanted = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_max": 2}
    assert config.speculative.speculative_config == wanted
    assert len(config.notes) == 2
