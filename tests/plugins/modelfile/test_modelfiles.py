"""Ollama's Modelfiles: read, written, made of requests, and as settings of a server."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import pytest
import yaml

from dovetail.cli.main import main
from dovetail.config.parse.parse_config import parse_config
from dovetail.errors import ConfigError, RequestError
from dovetail_plugins.commands._serve_flags import add_serve_arguments
from dovetail_plugins.modelfile.creation import of_request
from dovetail_plugins.modelfile.fields import fields_of, parameters_of
from dovetail_plugins.modelfile.model import KINDS, ExampleMessage, Modelfile
from dovetail_plugins.modelfile.reading import read, read_file
from dovetail_plugins.modelfile.writing import write

DIGEST = "sha256:" + "a1" * 32
WHOLE = '''# a comment
from ./model.gguf
FROM ./mmproj.gguf

PARAMETER temperature 0.5
parameter num_ctx 4096
PARAMETER stop "<|end|>"
PARAMETER stop User:
PARAMETER use_mmap false
TEMPLATE """{{ if .System }}{{ .System }}
{{ end }}
{{ .Prompt }} """
SYSTEM "You say "yes"."
ADAPTER ./adapter
LICENSE """
Do what
you want.
"""
LICENSE MIT
# another
MESSAGE user Is it so?
MESSAGE assistant """It is.
# it really is
"""
REQUIRES 0.14.0
'''


def path_of(digest: str) -> str:
    return f"/blobs/{digest.replace(':', '-')}"


def test_reads_every_instruction() -> None:
    assert read(WHOLE) == Modelfile(
        base="./model.gguf",
        projectors=("./mmproj.gguf",),
        parameters={
            "temperature": 0.5,
            "num_ctx": 4096,
            "stop": ("<|end|>", "User:"),
            "use_mmap": False,
        },
        template="{{ if .System }}{{ .System }}\n{{ end }}\n{{ .Prompt }} ",
        system='You say "yes".',
        adapters=("./adapter",),
        licenses=("\nDo what\nyou want.\n", "MIT"),
        messages=(
            ExampleMessage("user", "Is it so?"),
            ExampleMessage("assistant", "It is.\n# it really is\n"),
        ),
        requires="0.14.0",
    )


@pytest.mark.parametrize("name", KINDS)
def test_reads_every_parameter(name: str) -> None:
    texts: dict[type, tuple[str, Any]] = {
        int: ("-2", -2), float: ("1.5", 1.5), bool: ("True", True), str: ("a b", ("a b",)),
    }  # fmt: skip
    text, value = texts[KINDS[name]]
    assert read(f"FROM a\nPARAMETER {name.upper()} {text}").parameters == {name: value}


@pytest.mark.parametrize("text", [WHOLE, "FROM a", 'FROM a\nSYSTEM """one\ntwo"""', "FROM a\r\n"])
def test_what_is_written_is_read_back(text: str) -> None:
    modelfile = read(text)
    assert read(write(modelfile)) == modelfile


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16"])
def test_encodings(tmp_path: Path, encoding: str) -> None:
    file = tmp_path / "Modelfile"
    file.write_text("FROM a\nSYSTEM Grüße", encoding=encoding)
    assert read_file(file).system == "Grüße"


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("", "modelfile: the model is missing"),
        ("SYSTEM a", "the model is missing"),
        ("FROM", "line 1: FROM has no value"),
        ("FROM a\n\nINCLUDE b", 'line 3: there is no instruction "INCLUDE"'),
        ("FROM a\nPARAMETER", "line 2: PARAMETER has no value"),
        ("FROM a\nPARAMETER top_k", "line 2: PARAMETER needs a name and a value"),
        ("FROM a\nPARAMETER tops 1", 'line 2: there is no parameter "tops"'),
        ("FROM a\nPARAMETER top_k 1.5", "line 2: '1.5' is not a value of top_k. Fix: write a"),
        ("FROM a\nPARAMETER use_mmap maybe", "write true or false"),
        ("FROM a\nMESSAGE user", "line 2: MESSAGE needs a role and a text"),
        ("FROM a\nMESSAGE tool b", 'line 2: "tool" is not a role'),
        ('FROM a\nSYSTEM """b\nc', "line 2: a quote of SYSTEM is not closed"),
        ('FROM a\nSYSTEM "b\nc', "line 2: a quote of SYSTEM is not closed"),
    ],
)  # fmt: skip
def test_faults_name_the_line(text: str, what: str) -> None:
    with pytest.raises(ConfigError) as fault:
        read(text)
    assert what in str(fault.value)


def test_a_request_describes_a_model() -> None:
    body = {
        "model": "mine",
        "from": "base",
        "template": "{{ .Prompt }}",
        "license": ["MIT", "and more"],
        "system": "Be brief.",
        "parameters": {"temperature": 1, "stop": ["a", "b"], "num_ctx": 4096.0},
        "messages": [{"role": "user", "content": "hi"}],
        "adapters": {"a.gguf": DIGEST},
        "quantize": "q4_K_M",
    }
    made = of_request(body, path_of)
    assert made == Modelfile(
        base="base",
        parameters={"temperature": 1.0, "stop": ("a", "b"), "num_ctx": 4096},
        template="{{ .Prompt }}",
        system="Be brief.",
        adapters=(path_of(DIGEST),),
        licenses=("MIT", "and more"),
        messages=(ExampleMessage("user", "hi"),),
        quantize="q4_K_M",
    )
    assert of_request({"files": {"a.gguf": DIGEST}}, path_of).base == path_of(DIGEST)
    text = f"FROM @{DIGEST}\nSYSTEM Be long.\nPARAMETER top_k 3"
    older = of_request({"modelfile": text, "system": "Be brief."}, path_of)
    assert (older.base, older.system, older.parameters) == (
        path_of(DIGEST), "Be brief.", {"top_k": 3},
    )  # fmt: skip


@pytest.mark.parametrize(
    ("body", "what"),
    [
        ({}, "from: the model is missing"),
        ({"from": 3}, "from: must be a text"),
        ({"files": {"a": DIGEST, "b": DIGEST}}, "files: a model of 2 files"),
        ({"files": {"a": "../x"}}, "files.a: is not a digest"),
        ({"files": ["a"]}, "files: must be an object"),
        ({"from": "a", "parameters": {"tops": 1}}, 'parameters.tops: there is no parameter "tops"'),
        ({"from": "a", "parameters": {"top_k": True}}, "parameters.top_k: True is not a value"),
        ({"from": "a", "parameters": {"stop": [3]}}, "parameters.stop: 3 is not a value"),
        ({"from": "a", "license": [3]}, "license: must be a text"),
        ({"from": "a", "messages": [{"role": "user"}]}, "messages[0]: needs a role and a content"),
        ({"from": "a", "messages": [{"role": "x", "content": ""}]}, 'messages[0]: "x" is not a'),
    ],
)
def test_faults_of_a_request_name_the_field(body: dict[str, Any], what: str) -> None:
    with pytest.raises((RequestError, ConfigError)) as fault:
        of_request(body, path_of)
    assert str(fault.value).startswith(what)


def test_settings(tmp_path: Path) -> None:
    (tmp_path / "model.gguf").touch()
    found = fields_of(read(WHOLE), name="mine", folder=tmp_path)
    assert found.fields == {
        "model": str(tmp_path / "model.gguf"),
        "mmproj": str(tmp_path / "mmproj.gguf"),
        "served_model_name": ["mine-base"],
        "enable_lora": True,
        "lora_modules": [f"mine={tmp_path / 'adapter'}"],
        "max_model_len": 4096,
        "override_generation_config": {"temperature": 0.5, "stop": ["<|end|>", "User:"]},
        "chat_template": "{{ if .System }}{{ .System }}\n{{ end }}\n{{ .Prompt }} ",
        "plugin_options": {
            "renderer": {
                "system": 'You say "yes".',
                "messages": [
                    {"role": "user", "content": "Is it so?"},
                    {"role": "assistant", "content": "It is.\n# it really is\n"},
                ],
            }
        },
    }
    assert found.left_out == ("PARAMETER use_mmap", "LICENSE", "REQUIRES")


TYPICAL = {"mirostat_tau": 3.0, "typical_p": 0.5}


@pytest.mark.parametrize(
    ("lines", "sampling", "left_out"),
    [
        ("PARAMETER num_predict 7", {"max_tokens": 7}, ()),
        ("PARAMETER num_predict -1", {}, ()),
        ("PARAMETER seed -1", {}, ()),
        ("PARAMETER top_p 0", {"top_p": 1e-6}, ()),
        ("PARAMETER repeat_penalty 1.5", {"repetition_penalty": 1.5}, ()),
        (
            "PARAMETER repeat_penalty 1.5\nPARAMETER repeat_last_n 0",
            {"repetition_penalty": 1.5, "repeat_last_n": 0},
            (),
        ),
        ("PARAMETER mirostat 2", {"mirostat": 2}, ()),
        ("PARAMETER mirostat_tau 3\nPARAMETER typical_p 0.5", TYPICAL, ()),
        ("PARAMETER penalize_newline false", {}, ("PARAMETER penalize_newline",)),
        ("ADAPTER a\nADAPTER b", {}, ("ADAPTER, the second",)),
    ],
)
def test_parameters_are_default_sampling(
    lines: str, sampling: dict[str, Any], left_out: tuple[str, ...]
) -> None:
    found = fields_of(read(f"FROM org/model\n{lines}"))
    assert found.fields["model"] == "org/model"
    assert found.fields.get("override_generation_config", {}) == sampling
    assert found.left_out == left_out


def test_the_command_prints_a_file_of_settings(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "Modelfile").write_text(WHOLE)
    (tmp_path / "model.gguf").touch()
    assert main(["modelfile", str(tmp_path), "--name", "mine"]) == 0
    printed = capsys.readouterr()
    fields = yaml.safe_load(printed.out)
    assert fields == fields_of(read(WHOLE), name="mine", folder=tmp_path).fields
    assert "PARAMETER use_mmap, LICENSE, REQUIRES" in printed.err
    settings = tmp_path / "settings.yaml"
    settings.write_text(printed.out)
    parser = argparse.ArgumentParser()
    add_serve_arguments(parser)
    config = parse_config(parser.parse_args(["--config", str(settings)]))
    assert config.model.model == fields["model"]
    assert config.model.max_model_len == 4096
    assert config.frontend.chat_template == fields["chat_template"]
    assert config.plugin.plugin_options == fields["plugin_options"]


def test_defaults_of_a_server_are_parameters() -> None:
    laid = {"top_k": 5, "repetition_penalty": 1.2, "extra_args": {"mirostat": 2, "top_a": 0.1}}
    assert parameters_of(laid) == {"top_k": 5, "repeat_penalty": 1.2, "mirostat": 2}
