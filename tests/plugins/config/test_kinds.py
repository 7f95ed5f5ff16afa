"""Every choice-valued flag belongs to a plugin kind, and every kind's flags exist."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from dovetail.config.compat.deprecated_flags import deprecated_flags
from dovetail.config.config import GROUPS, Config, flags
from dovetail.config.rules.selections import select_executor
from dovetail.config.sections.field import Flag, flags_of
from dovetail.config.sections.parallel import ParallelConfig
from dovetail.config.sections.plugin import PluginConfig
from dovetail.interfaces.platform import PlatformDefaults
from dovetail.registry import KINDS
from dovetail_plugins.bench.settings import GROUPS_BY_COMMAND
from dovetail_plugins.quantize.settings import QuantizeFlags

WITH_KIND = [flag for flag in flags().values() if flag.meta.kind]
FILE_FLAGS = ("tool_parser_plugin", "reasoning_parser_plugin")


@pytest.mark.parametrize("flag", WITH_KIND, ids=lambda flag: flag.name)
def test_flag_and_kind_name_each_other(flag: Flag) -> None:
    kind = KINDS[str(flag.meta.kind)]
    assert flag.spelling in kind.flags


@pytest.mark.parametrize("kind", KINDS.values(), ids=lambda kind: kind.name)
def test_flags_of_kinds_exist(kind: object) -> None:
    measured = (group for groups in GROUPS_BY_COMMAND.values() for group in groups)
    bench = {flag.spelling for group in measured for flag in flags_of(group)}
    serve = {flag.spelling for flag in (*flags().values(), *deprecated_flags().values())}
    spellings = serve | bench | {flag.spelling for flag in flags_of(QuantizeFlags)}
    assert set(kind.flags) <= spellings  # type: ignore[attr-defined]


@pytest.mark.parametrize("flag", WITH_KIND, ids=lambda flag: flag.name)
def test_defaults_are_the_kinds_defaults(flag: Flag) -> None:
    kind = KINDS[str(flag.meta.kind)]
    if isinstance(flag.default, str) and kind.default is not None:
        assert flag.default == kind.default


def test_text_flags_without_a_kind_are_free_text() -> None:
    free = {
        "allowed_local_media_path",
        "api_keys_file",
        "chat_template",
        "code_revision",
        "cpu_cores",
        "data_parallel_address",
        "data_parallel_secret",
        "disable_access_log_for_endpoints",
        "download_dir",
        "file_storage",
        "hf_config_path",
        "hf_token",
        "host",
        "join",
        "log_config_file",
        "lora_resolver_cache_dir",
        "log_prefix",
        "models",
        "logits_processor_pattern",
        "mmproj",
        "model",
        "owner_header",
        "otlp_traces_endpoint",
        "pipeline_layer_split",
        "quantization_param_path",
        "reasoning_budget_message",
        "response_role",
        "revision",
        "root_path",
        "show_hidden_metrics_for_version",
        "socket_dir",
        "ssl_ca_certs",
        "ssl_certfile",
        "ssl_ciphers",
        "ssl_keyfile",
        "tokenizer",
        "tokenizer_revision",
        "uds",
        "worker_extension_cls",
        *FILE_FLAGS,
    }
    found = {f.name for f in flags().values() if f.value_type == "str" and f.meta.kind is None}
    assert found == free


def test_every_name_and_spelling_is_unique() -> None:
    names = [flag.name for group in GROUPS.values() for flag in flags_of(group)]
    spellings = [spelling for flag in flags().values() for spelling in flag.spellings]
    assert len(set(names)) == len(names)
    assert len(set(spellings)) == len(spellings)


PROPER_NAMES = ("CPUs", "LoRA", "OpenTelemetry", "Python", "Unix")


PROPER_NAMES = ("CPUs", "LoRA", "OpenTelemetry", "Python", "Unix")


@pytest.mark.parametrize("flag", flags().values(), ids=lambda flag: flag.name)
def test_help_is_written_in_one_style(flag: Flag) -> None:
    text = flag.meta.help
    assert text and text == text.strip() and not text.endswith(".")
    first = text.split()[0]
    assert text[0].islower() or first.isupper() or first in PROPER_NAMES


def test_importing_config_is_light() -> None:
    code = (
        "import sys; import dovetail, dovetail.config.resolve, dovetail.config.report.describe;"
        "heavy = {'torch', 'transformers', 'pydantic', 'huggingface_hub', 'numpy', 'yaml'};"
        "sys.exit(', '.join(heavy & set(sys.modules)) or 0)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("name", [None, "auto", ""])
def test_the_executors_auto_is_what_its_kind_says(name: str | None) -> None:
    pytest.importorskip("dovetail_plugins")
    kind = KINDS["executor"]
    asked = Config.from_fields({"distributed_executor_backend": name}).parallel
    usual = PlatformDefaults(worker="cpu")
    chosen = select_executor(asked, PluginConfig(), usual)
    assert chosen.name == kind.default
    assert str(kind.default) in kind.auto
    several = select_executor(ParallelConfig(), PluginConfig(), usual, 2)
    assert several.name == "mp" and "mp for more" in kind.auto
