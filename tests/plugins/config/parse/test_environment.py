"""Variables: their order among the routes, their forms, and every row of the table."""

from __future__ import annotations

import ast
import json
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli.parser import Parser
from dovetail.config.compat.deprecated_flags import deprecated_flags
from dovetail.config.config import Config, flags
from dovetail.config.parse.environment import OWN, read, today, variable_of
from dovetail.config.parse.flags import add_flags, config_of
from dovetail.config.parse.foreign_variables import (
    NoEffect,
    ReadBy,
    Setting,
    UnsupportedVariable,
    foreign_variables,
)
from dovetail.errors import ConfigError

ROOT = Path(__file__).resolve().parents[4]
FOREIGN = foreign_variables()
REFERENCE = json.loads((ROOT / "tests" / "reference" / "env_vars.json").read_text())


def config_from(environ: Mapping[str, str], *words: str) -> Config:
    parser = Parser(prog="dovetail serve", description="")
    add_flags(parser)
    return config_of(parser.parse(words), environ=environ)


def value_from(name: str, environ: Mapping[str, str], *words: str) -> Any:
    return config_from(environ, *words).value(name)


def test_the_command_line_wins_over_variables_and_these_over_files(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("port: 1\nseed: 1\nmax-num-seqs: 1\n", encoding="utf-8")
    environ = {"DOVETAIL_PORT": "2", "DOVETAIL_SEED": "2"}
    config = config_from(environ, "--config", str(file), "--port", "3")
    assert [config.value(name) for name in ("port", "seed", "max_num_seqs")] == [3, 2, 1]
    assert config.value("max_logprobs") == 20
    assert config.origins == {
        "port": "command line",
        "seed": "DOVETAIL_SEED",
        "max_num_seqs": str(file),
    }


def test_a_file_may_be_named_by_a_variable_too(tmp_path: Path) -> None:
    first, second = tmp_path / "1.yaml", tmp_path / "2.yaml"
    first.write_text("port: 1\nseed: 1\n", encoding="utf-8")
    second.write_text("port: 2\n", encoding="utf-8")
    environ = {"DOVETAIL_CONFIG": str(first)}
    config = config_from(environ, "--config", str(second))
    assert (config.value("port"), config.value("seed")) == (2, 1)
    assert config.origins["seed"] == str(first)
    assert config_from({"DOVETAIL_CONFIG": ""}).origins == {}
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        config_from({"DOVETAIL_CONFIG": "nowhere.yaml"})


@pytest.mark.parametrize(
    ("name", "text", "value"),
    [
        ("served_model_name", "a,b", ("a", "b")),
        ("served_model_name", '["a, b", "c"]', ("a, b", "c")),
        ("hf_overrides", '{"a": {"b": 1}}', {"a": {"b": 1}}),
        ("compilation_config", "1", {"level": 1}),
        ("enable_prefix_caching", "0", False),
        ("enable_prefix_caching", "False", False),
        ("enable_log_requests", "yes", True),
        ("max_num_batched_tokens", "4K", 4096),
        ("max_model_len", "auto", None),
        ("gpu_memory_utilization", "0.5", 0.5),
        ("model", "some/model", "some/model"),
    ],
)
def test_forms(name: str, text: str, value: Any) -> None:
    config = config_from({variable_of(flags()[name]): text})
    assert config.value(name) == value
    assert config.is_given(name)


def test_json_objects_are_laid_over_each_other(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("hf-overrides:\n  a: 1\n  b: 1\n  c: 1\n", encoding="utf-8")
    environ = {"DOVETAIL_HF_OVERRIDES": '{"b": 2, "c": 2}'}
    words = ("--config", str(file), "--hf-overrides.c", "3")
    assert value_from("hf_overrides", environ, *words) == {"a": 1, "b": 2, "c": 3}


@pytest.mark.parametrize("name", ["DOVETAIL_PORT", "VLLM_API_KEY", "VLLM_NCCL_SO_PATH", "VLLM_X"])
def test_an_empty_variable_sets_nothing(name: str) -> None:
    found = read({name: ""})
    assert (found.fields, found.notes, found.warnings) == ({}, (), ())


def test_a_wrong_value_names_the_variable_and_no_secret() -> None:
    with pytest.raises(ConfigError) as caught:
        config_from({"DOVETAIL_PORT": "many"})
    assert caught.value.where == "--port (from DOVETAIL_PORT)"
    assert value_from("api_key", {"DOVETAIL_API_KEY": "hunter2"}) == ("hunter2",)
    with pytest.raises(ConfigError) as caught:
        config_from({"DOVETAIL_API_KEY": "hunter2", "VLLM_API_KEY": "hunter3"})
    assert "hunter" not in str(caught.value)


@pytest.mark.parametrize(
    ("name", "near"),
    [
        ("DOVETAIL_MAX_MODEL_LENGTH", "DOVETAIL_MAX_MODEL_LEN"),
        ("VLLM_ATTENTION_BACKENDS", "VLLM_ATTENTION_BACKEND"),
        ("VLLM_MAX_MODEL_LEN", "DOVETAIL_MAX_MODEL_LEN"),
        ("DOVETAIL_ZQXJKV", None),
    ],
)
def test_unknown_names_warn_with_the_nearest(name: str, near: str | None) -> None:
    (warning,) = read({name: "1"}).warnings
    assert warning.startswith(f"{name} is not a variable")
    assert (near is None) == ("did you mean" not in warning)
    assert near is None or warning.endswith(f"did you mean {near}?")


def test_other_programs_variables_are_nobody_s_business() -> None:
    found = read({"PATH": "/bin", "HOME": "/", "MY_DOVETAIL_PORT": "x", "HF_TOKEN": "secret"})
    assert (found.fields, found.notes, found.warnings) == ({}, (), ())


@pytest.mark.parametrize(
    "environ",
    [
        {"DOVETAIL_API_KEY": "a", "VLLM_API_KEY": "b"},
        {"DOVETAIL_RUNNER": "generate", "DOVETAIL_TASK": "embed"},
        {"VLLM_CPU_KVCACHE_SPACE": "1", "DOVETAIL_KV_CACHE_MEMORY_BYTES": "2"},
    ],
)
def test_two_names_that_disagree(environ: dict[str, str]) -> None:
    with pytest.raises(ConfigError, match="unset one of them"):
        config_from(environ)


def test_two_names_that_agree() -> None:
    environ = {"VLLM_CPU_KVCACHE_SPACE": "1", "DOVETAIL_KV_CACHE_MEMORY_BYTES": "1G"}
    assert value_from("kv_cache_memory_bytes", environ) == 2**30


def test_kubernetes_service_links_are_no_settings() -> None:
    environ = {
        "VLLM_PORT": "tcp://10.0.0.1:8000",
        "DOVETAIL_PORT": "tcp://10.0.0.1:8000",
        "DOVETAIL_SERVICE_HOST": "10.0.0.1",
        "DOVETAIL_SERVICE_PORT_HTTP": "8000",
        "VLLM_SERVER_PORT_8000_TCP_ADDR": "10.0.0.1",
    }
    found = read(environ)
    assert (found.fields, found.notes, found.warnings) == ({}, (), ())
    assert value_from("port", {"DOVETAIL_PORT": "8001"}) == 8001


NEWER = {"VLLM_MAX_AUDIO_CLIP_FILESIZE_MB", "VLLM_MEDIA_URL_ALLOW_REDIRECTS"}
"""Names that are younger than the reference."""

SAMPLES: dict[str, tuple[str, str, Any]] = {
    "VLLM_ALLOW_LONG_MAX_MODEL_LEN": ("1", "allow_long_max_model_len", True),
    "VLLM_ALLOW_RUNTIME_LORA_UPDATING": ("1", "allow_runtime_lora_updating", True),
    "VLLM_API_KEY": ("one,two", "api_key", ("one", "two")),
    "VLLM_ATTENTION_BACKEND": ("TORCH_SDPA", "attention_backend", "TORCH_SDPA"),
    "VLLM_AUDIO_FETCH_TIMEOUT": ("3", "audio_fetch_timeout", 3.0),
    "VLLM_IMAGE_FETCH_TIMEOUT": ("3", "image_fetch_timeout", 3.0),
    "VLLM_VIDEO_FETCH_TIMEOUT": ("3", "video_fetch_timeout", 3.0),
    "VLLM_MAX_AUDIO_CLIP_FILESIZE_MB": ("3", "max_audio_clip_filesize_mb", 3),
    "VLLM_MEDIA_URL_ALLOW_REDIRECTS": ("0", "media_url_allow_redirects", False),
    "VLLM_CONFIGURE_LOGGING": ("0", "configure_logging", False),
    "VLLM_CPU_KVCACHE_SPACE": ("1.5", "kv_cache_memory_bytes", 3 * 2**29),
    "VLLM_CPU_OMP_THREADS_BIND": ("0-3,8", "cpu_cores", "0-3,8"),
    "VLLM_DP_MASTER_IP": ("10.0.0.1", "data_parallel_address", "10.0.0.1"),
    "VLLM_DP_MASTER_PORT": ("13345", "data_parallel_rpc_port", 13345),
    "VLLM_DP_RANK": ("1", "data_parallel_rank", 1),
    "VLLM_DP_SIZE": ("2", "data_parallel_size", 2),
    "VLLM_ENGINE_ITERATION_TIMEOUT_S": ("60", "engine_step_timeout", 60.0),
    "VLLM_KEEP_ALIVE_ON_ENGINE_DEATH": ("true", "keep_alive_on_engine_death", True),
    "VLLM_LOGGING_CONFIG_PATH": ("/log.json", "log_config_file", "/log.json"),
    "VLLM_LOGGING_LEVEL": ("WARN", "log_level", "warning"),
    "VLLM_LOGGING_PREFIX": ("[a] ", "log_prefix", "[a] "),
    "VLLM_LOG_BATCHSIZE_INTERVAL": (
        "5",
        "plugin_options",
        {"stat_logger": {"log": {"interval_s": 5.0}}},
    ),
    "VLLM_MM_INPUT_CACHE_GIB": ("0", "mm_processor_cache_gb", 0.0),
    "VLLM_NO_DEPRECATION_WARNING": ("1", "show_notes", False),
    "VLLM_PP_LAYER_PARTITION": ("10,12", "pipeline_layer_split", "10,12"),
    "VLLM_RPC_BASE_PATH": ("/run", "socket_dir", "/run"),
    "VLLM_RPC_TIMEOUT": ("2500", "engine_reply_timeout", 2.5),
    "VLLM_SERVER_DEV_MODE": ("1", "enable_dev_endpoints", True),
    "VLLM_TEST_FORCE_LOAD_FORMAT": ("dummy", "load_format", "dummy"),
    "VLLM_TORCH_PROFILER_DIR": ("/t", "profiler_config", {"torch_profiler_dir": "/t"}),
    "VLLM_USE_MODELSCOPE": ("1", "use_modelscope", True),
    "VLLM_USE_TRITON_FLASH_ATTN": ("1", "attention_backend", "TRITON_FLASH_ATTN"),
}
"""Variable -> a text, the field it sets, and its value there."""


def test_a_flags_other_spellings_have_variables_too() -> None:
    assert value_from("cpu_cores", {"DOVETAIL_CPU_OMP_THREADS_BIND": "0-3|4-7"}) == "0-3|4-7"


@pytest.mark.parametrize("name", sorted(FOREIGN))
def test_every_row_has_an_effect_or_a_sentence(name: str) -> None:
    row = FOREIGN[name]
    match row:
        case Setting():
            text, field, value = SAMPLES[name]
            config = config_from({name: text})
            assert config.value(field) == value != flags()[field].default
            assert config.origins[field] == name
            assert config.notes == (f"{name} is {today(row)}.",)
            assert (
                variable_of(flags()[field]) in config.notes[0]
                or "." in row.today
                or "no-" in (row.today)
            )
        case NoEffect():
            assert read({name: "1"}).notes == (f"{name} changes nothing: {row.always}.",)
        case ReadBy():
            found = read({name: "1"})
            assert (found.fields, found.notes, found.warnings) == ({}, (), ())
            assert row.who
        case UnsupportedVariable():
            for text in row.passing:
                assert read({name: text}).fields == {}
            with pytest.raises(ConfigError, match=re.escape(row.missing)) as caught:
                read({name: "fork"})
            assert caught.value.where == name
            assert (caught.value.fix or "").startswith(f"unset {name}")


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("VLLM_CPU_KVCACHE_SPACE", "0"),
        ("VLLM_LOG_BATCHSIZE_INTERVAL", "-1"),
        ("VLLM_USE_TRITON_FLASH_ATTN", "0"),
    ],
)
def test_words_that_ask_for_the_default(name: str, text: str) -> None:
    assert config_from({name: text}).origins == {}


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("VLLM_CPU_KVCACHE_SPACE", "much"),
        ("VLLM_RPC_TIMEOUT", "10s"),
        ("VLLM_LOG_BATCHSIZE_INTERVAL", "often"),
    ],
)
def test_texts_that_are_not_understood_name_their_variable(name: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        config_from({name: text})
    assert caught.value.where == name


def test_names_without_a_prefix_are_never_an_error() -> None:
    for row in REFERENCE:
        if not row["name"].startswith("VLLM_"):
            assert isinstance(FOREIGN[row["name"]], ReadBy)


def test_the_table_holds_the_reference_and_nothing_else() -> None:
    assert {row["name"] for row in REFERENCE} | NEWER == set(FOREIGN)
    assert {name for name, row in FOREIGN.items() if isinstance(row, Setting)} == set(SAMPLES)
    assert not set(FOREIGN) & set(OWN)


def test_every_variable_that_is_read_is_known() -> None:
    """A name of ours in the sources is a flag's, or stands in OWN with its meaning."""
    known = {variable_of(flag) for flag in (*flags().values(), *deprecated_flags().values())} | {
        *OWN
    }
    read_somewhere = set()
    for part in ("core", "plugins", "kernels"):
        for path in (ROOT / part).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
                is_text = isinstance(node, ast.Constant) and isinstance(node.value, str)
                if is_text and re.fullmatch(r"DOVETAIL_[A-Z0-9_]+", node.value):
                    read_somewhere.add(node.value)
        for pattern in ("*.cpp", "*.h", "*.cu"):
            for path in (ROOT / part).rglob(pattern):
                read_somewhere |= set(re.findall(r'"(DOVETAIL_[A-Z0-9_]+)"', path.read_text()))
    assert {"DOVETAIL_PLUGINS", "DOVETAIL_CPU_ISA"} <= read_somewhere
    assert read_somewhere - known == set()


def test_notes_can_be_hidden_and_warnings_cannot(capsys: pytest.CaptureFixture[str]) -> None:

    environ = {"VLLM_USE_V1": "1", "VLLM_ZQX": "1"}
    config_from(environ).tell(sys.stderr)
    both = capsys.readouterr().err.splitlines()
    config_from(environ, "--no-show-notes").tell(sys.stderr)
    assert [line.split()[1] for line in both] == ["warning:", "note:"]
    assert capsys.readouterr().err.splitlines() == both[:1]
