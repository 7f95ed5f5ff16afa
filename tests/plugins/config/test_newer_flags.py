"""Newer flags of vLLM: what each is mapped to, taken as, or refused for."""

from __future__ import annotations

import io
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from dovetail.cli.helptext import topic
from dovetail.cli.parser import Parser
from dovetail.config.compat.deprecated_flags import NewerFlag, newer_flags, translate
from dovetail.config.config import Config
from dovetail.config.parse.environment import variable_of
from dovetail.config.parse.flags import add_flags, config_of
from dovetail.config.report.describe import state_of
from dovetail.errors import ConfigError

SPECULATION = "speculative_config"
COMPILATION = "compilation_config"
ENDING = "Time is up.\n"
MEANT: list[tuple[str, Any, dict[str, Any]]] = [
    ("language_model_only", True, {"limit_mm_per_prompt": {"image": 0, "video": 0, "audio": 0}}),
    ("numa_bind_cpus", ["0-3", "4-7"], {"cpu_cores": "0-3|4-7"}),
    ("cudagraph_capture_sizes", ["1", "8"], {COMPILATION: {"cudagraph_capture_sizes": [1, 8]}}),
    ("max_cudagraph_capture_size", 64, {COMPILATION: {"max_capture_size": 64}}),
    ("optimization_level", 1, {COMPILATION: {"level": 1}}),
    ("ubatch_size", 2, {"enable_dbo": True}),
    ("data_parallel_external_lb", True, {"data_parallel_size_local": 1}),
    (
        "reasoning_config",
        {
            "reasoning_parser": "qwen3",
            "reasoning_start_str": "<think>",
            "reasoning_end_str": ENDING + "</think>",
        },
        {"reasoning_parser": "qwen3", "reasoning_budget_message": ENDING.strip()},
    ),
    (
        "logging_config",
        {"log_level": "DEBUG", "formatter": "json", "configure_logging": True},
        {"log_level": "debug", "log_format": "json", "configure_logging": True},
    ),
    ("attention_config", {"backend": "TORCH_SDPA"}, {"attention_backend": "torch_sdpa"}),
    (
        "kv_offloading_size",
        2.5,
        {
            "kv_transfer_config": {
                "kv_connector": "offloading",
                "kv_role": "kv_both",
                "kv_connector_extra_config": {"host_bytes": 2_684_354_560},
            }
        },
    ),
    ("max_num_scheduled_tokens", 512, {"max_num_batched_tokens": 512}),
    ("max_num_active_seqs", 8, {"max_num_seqs": 8}),
    ("spec_method", "ngram", {SPECULATION: {"method": "ngram"}}),
    ("spec_model", "small", {SPECULATION: {"model": "small"}}),
    ("spec_tokens", 3, {SPECULATION: {"num_speculative_tokens": 3}}),
]
"""Flag, value, fields of today."""
NOTHING: list[tuple[str, Any]] = [
    ("language_model_only", False),
    ("numa_bind_cpus", []),
    ("ubatch_size", 0),
    ("ubatch_size", 1),
    ("data_parallel_external_lb", False),
    ("reasoning_config", {"reasoning_start_str": "<think>", "reasoning_end_str": "[/THINK]"}),
    ("attention_config", {"backend": None, "use_cudnn_prefill": False}),
    ("attention_config", {"use_trtllm_attention": True, "mla_prefill_backend": "FLASHINFER"}),
    ("kv_offloading_size", 0),
    ("moe_backend", "triton"),
    ("kernel_config", {"linear_backend": "cutlass"}),
    ("numa_bind", False),
    ("grpc", False),
    ("watermark", 0.0),
    ("nnodes", 1),
    ("sleep_mode_backend", "cumem"),
    ("mm_processor_device", "auto"),
    ("quantization_config", {}),
    ("lora_target_modules", []),
    ("kv_offloading_backend", "native"),
]
"""Flag and a value that sets nothing."""
REFUSED: list[tuple[str, Any, str]] = [
    ("ubatch_size", 3, "two half batches"),
    ("cudagraph_capture_sizes", ["many"], "whole numbers"),
    ("reasoning_config", {"reasoning_end_str": "no tag"}, "the tag of its parser"),
    ("reasoning_config", {"reasoning_start_str": "Let me see"}, "the tag of its parser"),
    ("reasoning_config", {"budget": 3}, "the key budget"),
    ("attention_config", {"flash_attn_version": 3}, "the key flash_attn_version"),
    ("logging_config", {"colour": True}, "the key colour"),
    ("kv_offloading_size", -1, "below 0"),
    ("kv_offloading_backend", "lmcache", "moved to host memory"),
    ("mm_hasher_algorithm", "sha512", "SHA-256"),
    ("nnodes", 2, "launcher"),
    ("watermark", 0.1, "number of blocks"),
    ("numa_bind", True, "NUMA"),
]
"""Flag, a value that asks for what is absent, words of the error."""
REFUSING = sorted(name for name, one in newer_flags().items() if one.row.state == "refused")
OTHER = {
    "bool": True,
    "int": 7_777,
    "float": 0.75,
    "str": "something",
    "list": ["one"],
    "json": {"one": 1},
}
"""A value of each type that is no default."""


def parsed(words: list[str], environ: dict[str, str] | None = None) -> Config:
    parser = Parser(prog="dovetail serve", description="")
    add_flags(parser)
    return config_of(parser.parse(words), environ=environ or {})


def spelling_of(name: str) -> str:
    return newer_flags()[name].flag.spelling


def test_every_mapped_flag_is_in_the_table() -> None:
    mapped = {name for name, one in newer_flags().items() if one.row.state == "mapped"}
    assert {name for name, _, _ in MEANT} == mapped


@pytest.mark.parametrize(("name", "value", "fields"), MEANT)
def test_what_a_value_means(name: str, value: Any, fields: dict[str, Any], tmp_path: Path) -> None:
    found, note = translate(name, value)
    assert found == fields
    assert note.startswith(f"{spelling_of(name)} is --")
    flag, file = newer_flags()[name].flag, tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump({flag.spelling[2:]: value}), encoding="utf-8")
    text = value if isinstance(value, str) else json.dumps(value)
    for config in (
        Config.from_fields({name: value}),
        parsed([f"{flag.spelling}={text}"]),
        parsed([], {variable_of(flag): text}),
        parsed(["--config", str(file)]),
    ):
        assert {target: config.value(target) for target in fields} == fields
        assert set(config.origins) == set(fields)
        assert config.notes == (note,)


@pytest.mark.parametrize(("name", "value"), NOTHING)
def test_a_value_that_sets_nothing_has_its_line(name: str, value: Any) -> None:
    config = Config.from_fields({name: value})
    assert config.origins == {}
    lines = io.StringIO()
    config.tell(lines)
    assert lines.getvalue().startswith(f"dovetail: note: {spelling_of(name)} ")


@pytest.mark.parametrize(("name", "value", "words"), REFUSED)
def test_a_value_that_asks_for_what_is_absent(name: str, value: Any, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as caught:
        Config.from_fields({name: value})
    assert caught.value.where == spelling_of(name)
    assert caught.value.fix


@pytest.mark.parametrize("name", REFUSING)
def test_a_refused_flag_is_refused_with_its_reason(name: str) -> None:
    newer = newer_flags()[name]
    value = OTHER[newer.flag.value_type]
    values = (value, False) if newer.flag.value_type == "bool" else (value,)
    errors = [error for one in values if (error := refusal(newer, one)) is not None]
    state, reason = state_of(newer.flag)
    assert state == "refused"
    assert len(errors) == 1, "a switch is refused in one of its positions"
    assert errors[0].what in reason
    assert errors[0].fix == f"{newer.row.instead}."


def refusal(newer: NewerFlag, value: Any) -> ConfigError | None:
    try:
        newer.row.fields(value)
    except ConfigError as error:
        return error
    return None


@pytest.mark.parametrize(
    ("words", "fields"),
    [
        (["--reasoning-config.reasoning_parser", "qwen3"], {"reasoning_parser": "qwen3"}),
        (["-ac.backend", "torch_sdpa"], {"attention_backend": "torch_sdpa"}),
        (["-cc.mode=3"], {COMPILATION: {"mode": 3}}),
        (["-sc.method=ngram"], {SPECULATION: {"method": "ngram"}}),
        (["-dpe", "-dpn", "0"], {"data_parallel_rank": 0, "data_parallel_size_local": 1}),
        (["-ep"], {"enable_expert_parallel": True}),
        (["-dcp", "2"], {"decode_context_parallel_size": 2}),
        (["-dc={}", "-dcp=2"], {"decode_context_parallel_size": 2}),
        (["-dph"], {"data_parallel_hybrid_lb": True}),
        (["--device-memory-utilization", "0.5"], {"gpu_memory_utilization": 0.5}),
        (["--no-grpc", "-n", "1", "-r", "0"], {}),
        (["--numa_bind_cpus", "0-3", "4-7"], {"cpu_cores": "0-3|4-7"}),
        (["--kernel-config.moe_backend", "triton"], {}),
    ],
)
def test_spellings(words: list[str], fields: dict[str, Any]) -> None:
    config = parsed(words)
    assert {name: config.value(name) for name in config.origins} == fields


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--max-modl-len", "3"], "did you mean --max-model-len"),
        (["--modle-impl=auto"], "--model-impl"),
    ],
)
def test_an_unknown_word_names_the_nearest(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parsed(words)


def test_an_unknown_keyword_names_the_nearest() -> None:
    with pytest.raises(ConfigError, match="max_model_len"):
        Config.from_fields({"max_model_length": 3})


def test_two_names_that_disagree() -> None:
    with pytest.raises(ConfigError, match="--max-num-active-seqs: asks for 8, but --max-num-seqs"):
        Config.from_fields({"max_num_active_seqs": 8, "max_num_seqs": 9})


def test_help_lists_none_of_them_and_describes_each() -> None:
    parser = Parser(prog="dovetail serve", description="")
    add_flags(parser)
    whole = topic(parser, "all")
    assert [name for name in newer_flags() if f"{spelling_of(name)} " in whole] == []
    assert "it changes nothing: there is no gRPC server" in " ".join(topic(parser, "grpc").split())
