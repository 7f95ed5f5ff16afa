"""Every flag through every route (command line, YAML, variable, keyword) gives the same value."""

from __future__ import annotations

import argparse
import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

from dovetail.cli.parser import Parser
from dovetail.config.config import Config, flags
from dovetail.config.parse.environment import variable_of
from dovetail.config.parse.flags import add_flags, config_of
from dovetail.config.sections.field import Flag
from dovetail.errors import ConfigError

FLAGS = sorted(flags().values(), key=lambda flag: flag.name)


@cache
def parser() -> Parser:
    made = Parser(prog="dovetail serve", description="")
    made.add_argument("model_tag", nargs="?")
    add_flags(made)
    return made


def parse(*words: str) -> Config:
    args: argparse.Namespace = parser().parse(words)
    return config_of(args, model=args.model_tag)


def sample(flag: Flag) -> Any:
    """Return a value that differs from the default and keeps the bounds."""
    low = flag.meta.ge if flag.meta.ge is not None else 0
    match flag.value_type:
        case "bool":
            return not flag.default
        case "int":
            most = low + 3 if flag.meta.le is None else flag.meta.le
            return int(low if min(low + 3, most) == flag.default else min(low + 3, most))
        case "float":
            return low + 0.5 if flag.meta.le is not None else low + 1.5
        case "list":
            return ("one", "two")
        case "json":
            return {"first": {"second": [1, "x", None]}, "third": False}
        case _:
            return "some-text"


def words_for(flag: Flag, value: Any) -> list[list[str]]:
    """Return several spellings of the same setting."""
    under = "--" + flag.name
    match flag.value_type:
        case "bool":
            bare = flag.spelling if value else f"--no-{flag.spelling[2:]}"
            word = str(value).lower()
            return [[bare], [bare.replace("-", "_").replace("__", "--", 1)], [f"{under}={word}"]]
        case "list":
            comma = ",".join(value)
            return [
                [flag.spelling, *value],
                [f"{under}={comma}"],
                [flag.spelling, json.dumps(list(value))],
                [part for item in value for part in (flag.spelling, item)],
            ]
        case "json":
            return [
                [flag.spelling, json.dumps(value)],
                [f"{under}={json.dumps(value)}"],
                f"{under}.first.second+ 1 {flag.spelling}.first.second+=x "
                f"{flag.spelling}.first.second+ null {under}.third=false".split(),
            ]
        case _:
            return [[name, str(value)] for name in (*flag.spellings, under)] + [
                [f"{under}={value}"],
                [f"{flag.spelling}={value}"],
            ]


@pytest.mark.sampled(every=2)
@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_every_route_gives_the_value(flag: Flag, tmp_path: Path) -> None:
    value = sample(flag)
    assert value != flag.default
    for words in words_for(flag, value):
        assert parse(*words).value(flag.name) == value, words
    plain = list(value) if isinstance(value, tuple) else value
    for key in (flag.name, flag.spelling[2:]):
        file = tmp_path / f"{key}.yaml"
        file.write_text(yaml.safe_dump({key: plain}), encoding="utf-8")
        assert parse("--config", str(file)).value(flag.name) == value
        assert parse(f"--config={file}").value(flag.name) == value
    assert Config.from_fields({flag.name: plain}).value(flag.name) == value
    text = value if isinstance(value, str) else json.dumps(plain)
    environ = {variable_of(flag): text}
    assert config_of(parser().parse([]), environ=environ).value(flag.name) == value


@pytest.mark.parametrize("flag", FLAGS, ids=lambda flag: flag.name)
def test_defaults_pass_their_own_checks(flag: Flag) -> None:
    default = list(flag.default) if isinstance(flag.default, tuple) else flag.default
    assert Config.from_fields({flag.name: default}).value(flag.name) == flag.default
    assert Config().value(flag.name) == flag.default


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("enable_prefix_caching", False),
        ("max_logprobs", 0),
        ("tool_parser_plugin", ""),
        ("max_model_len", None),
        ("served_model_name", []),
        ("hf_overrides", {}),
    ],
)
def test_falsey_yaml_values_count(key: str, value: Any, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(yaml.safe_dump({key: value}), encoding="utf-8")
    config = parse("--config", str(file))
    assert config.is_given(key)
    assert config.value(key) == (tuple(value) if isinstance(value, list) else value)


def test_null_for_a_flag_that_needs_a_value_is_refused(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("port:\n", encoding="utf-8")
    with pytest.raises(ConfigError, match="null is not a whole number"):
        parse("--config", str(file))


def test_command_line_wins_over_file_and_later_file_over_earlier(tmp_path: Path) -> None:
    first, second = tmp_path / "1.yaml", tmp_path / "2.yaml"
    first.write_text("port: 1\nseed: 1\nmax-num-seqs: 1\n", encoding="utf-8")
    second.write_text("port: 2\nseed: 2\n", encoding="utf-8")
    config = parse("--port", "3", "--config", str(first), "--config", str(second))
    found = (config.frontend.port, config.model.seed, config.scheduler.max_num_seqs)
    assert found == (3, 2, 1)
    assert config.origins["port"] == "command line"
    assert config.origins["seed"] == str(second)


def test_the_model_may_stand_in_three_places(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("model: here\n", encoding="utf-8")
    assert parse("here").model.model == "here"
    assert parse("--model", "here").model.model == "here"
    assert parse("--config", str(file)).model.model == "here"
    with pytest.raises(ConfigError, match="name the model once"):
        parse("here", "--model", "there")


@pytest.mark.parametrize(
    ("words", "items"),
    [
        (
            ["--lora-modules", '{"name": "x", "path": "y"}', "a=b"],
            ('{"name": "x", "path": "y"}', "a=b"),
        ),
        (["--lora-modules", '[{"name": "x"}, "a=b"]'], ('{"name": "x"}', "a=b")),
        (["--CUDA-graph-sizes", "1", "2"], ("1", "2")),
        (["--collect-detailed-traces", "None"], ()),
    ],
)
def test_items_of_lists(words: list[str], items: tuple[str, ...]) -> None:
    (name,) = (given := parse(*words)).origins
    assert given.value(name) == items


def test_switches_do_not_swallow_the_model() -> None:
    config = parse("--async-scheduling", "model")
    assert config.scheduler.async_scheduling
    assert config.model.model == "model"
    assert parse("--async-scheduling", "false", "model").scheduler.async_scheduling is False


def test_dotted_yaml_keys(tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text("hf-overrides.a.b: 1\nhf_overrides.a.c: [2]\n", encoding="utf-8")
    assert parse("--config", str(file)).model.hf_overrides == {"a": {"b": 1, "c": [2]}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("prot: 1", "port"),
        ("port: 1\nport: 2", "more than once"),
        ("- port", "flag: value"),
        ("port: [", "not YAML"),
        ("port.inner: 1", "no keys"),
    ],
)
def test_wrong_files_are_refused(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "settings.yaml"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=message):
        parse("--config", str(file))


def test_a_missing_file_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"cannot read nowhere\.yaml"):
        parse("--config", "nowhere.yaml")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--hf-overrides", "{"], "not valid JSON"),
        (["--hf-overrides", "[1]"], "JSON object"),
        (["--hf-overrides"], "needs a value"),
        (["--hf-overrides.a", "1", "--hf-overrides.a.b", "2"], "cannot set a.b"),
        (["--hf-overrides.a", "1", "--hf-overrides.a+", "2"], r"cannot set a\+"),
        (["--port.x", "1"], "no keys"),
        (["--port"], "expected one argument"),
        (["--port", "70000"], "from 0 to 65535"),
        (["--max-model-len", "-1"], "give at least 1 or auto"),
        (["--lora-modules", '{"name'], "a list of words"),
        (["--async-scheduling=perhaps"], "true or false"),
        (["model", "another"], "cannot place 'another'"),
    ],
)
def test_wrong_words_are_refused(words: list[str], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        parse(*words)


def test_json_pieces_merge_from_left_to_right() -> None:
    config = parse("--hf-overrides", '{"a": {"x": 1, "y": 2}}', "--hf-overrides.a.y", "3")
    assert config.model.hf_overrides == {"a": {"x": 1, "y": 3}}
    config = parse("--hf-overrides.a.y", "3", "--hf_overrides", '{"a": {"x": 1, "y": 2}}')
    assert config.model.hf_overrides == {"a": {"x": 1, "y": 2}}


def test_what_is_appended_is_a_value_too() -> None:
    words = ("--hf-overrides.k+", "1", "--hf-overrides.k+=2,x", "--hf-overrides.k+", "true")
    assert parse(*words).model.hf_overrides == {"k": [1, 2, "x", True]}


def test_plugin_options_keep_their_key_spelling() -> None:
    config = parse("--plugin-options.tool_parser.some_option", "v", "--plugin_options.x-y.z=1")
    assert config.plugin.plugin_options == {"tool_parser": {"some_option": "v"}, "x-y": {"z": 1}}
    assert config.plugin.options_of("x_y") == {"z": 1}


def test_secrets_are_never_shown() -> None:
    config = parse("--api-key", "sk-one", "sk-two", "--port", "1")
    assert config.frontend.api_key == ("sk-one", "sk-two")
    assert config.shown() == {"api_key": "***", "port": 1}
    assert "sk-" not in repr(config)


def test_configs_do_not_share_their_dicts() -> None:
    assert Config().model.hf_overrides is not Config().model.hf_overrides
