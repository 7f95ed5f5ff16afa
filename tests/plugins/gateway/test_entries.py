"""Which models a gateway serves, and what it refuses."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from dovetail.cli.parser import Parser
from dovetail.config.config import Config
from dovetail.config.parse.parse_config import parse_config
from dovetail.errors import ConfigError
from dovetail.interfaces.plugin import NoOptions
from dovetail_plugins.commands._serve_flags import add_serve_arguments
from dovetail_plugins.commands.serve import ServeCommand
from dovetail_plugins.gateway.entries import ModelEntry, entries_of
from dovetail_plugins.gateway.fleet import Fleet
from dovetail_plugins.gateway.memory_need import MemoryNeed
from dovetail_plugins.gateway.metrics import labelled
from dovetail_plugins.gateway.model import GatewayModel
from dovetail_plugins.gateway.serve import fleet_of
from dovetail_plugins.gateway.server import child_fields
from support.fake_models import Rig


def of_file(folder: Path, text: str, **shared: Any) -> tuple[ModelEntry, ...]:
    """Return the models of a file."""
    path = folder / "models.yaml"
    path.write_text(text)
    return entries_of(Config.from_fields({"models": str(path)} | shared), ())


def test_models_of_the_command_line_share_their_flags() -> None:
    config = Config.from_fields({"max_num_seqs": 4, "served_model_name": ["a", "b"], "port": 1})
    first, second = entries_of(config, ["/x", "/y"])
    assert (first.names, second.names) == (("a",), ("b",))
    assert first.loads_at_start
    fields = child_fields(second, "/s")
    assert fields["model"] == "/y"
    assert (fields["uds"], fields["max_num_seqs"], fields["log_prefix"]) == ("/s", 4, "[b] ")
    assert "port" not in fields
    assert entries_of(Config(), ["/x", "/y"])[1].names == ("/y",)


def test_models_of_a_file_have_flags_of_their_own(tmp_path: Path) -> None:
    text = (
        "models:\n"
        "- {model: /x, served_model_name: [a, a2], max-num-seqs: 8, load: at_first_use}\n"
        "- {model: /y, idle_after_s: 600, on_idle: sleep}\n"
    )
    first, second = of_file(tmp_path, text, max_num_seqs=2, idle_after_s=5, api_key=["k"])
    assert (first.names, first.loads_at_start, first.idle_after_s) == (("a", "a2"), False, 5.0)
    assert first.config.scheduler.max_num_seqs == 8
    assert (second.names, second.idle_after_s, second.sleep_level) == (("/y",), 600.0, 1)
    fields = child_fields(second, "/s")
    assert (fields["max_num_seqs"], fields["enable_sleep_mode"]) == (2, True)
    assert not {"api_key", "models", "on_idle"} & fields.keys()


@pytest.mark.parametrize(
    ("text", "told"),
    [
        ("models: []", "with a list of models"),
        ("port: 1\nmodels: [{model: /x}]", "nothing beside it: port"),
        ("models: [1]", "model 1: must be `flag: value` lines"),
        ("models: [{dtype: float32}]", "names no model"),
        ("models: [{model: /x, port: 3}]", "port belongs to the address"),
        ("models: [{model: /x, prot: 3}]", "no setting"),
        ("models: [{model: /x, load: later}]", "at_start or at_first_use"),
        ("models: [{model: /x, on_idle: rest}]", "unload or sleep"),
        ("models: [{model: /x}, {model: /x}]", 'two models are called "/x"'),
        ("models: [{model: /x, keep_alive_on_engine_death: true}]", "is started again"),
        ("models: [{model: /x, headless: true}]", "model 1, headless: the engines of one machine"),
        ("models: [{model: /x, file_storage: f}, {model: /y, file_storage: ./f}]", "of /y: two"),
    ],
)
def test_a_file_at_fault(tmp_path: Path, text: str, told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        of_file(tmp_path, text)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (["/x", "/y", "--served-model-name", "a"], "2 models have 1 names"),
        (["/x", "/y", "--file-storage", "f"], "cannot share a folder"),
        (["/x", "--models", "f.yaml"], "named beside it"),
        (["--models", "f.yaml", "--served-model-name", "a"], "cannot be that of every model"),
        (["/x", "--load-wait-s", "3"], "there is one model"),
        (["/x", "--models-memory-bytes", "3"], "there is one model"),
        (["/x", "/y", "--port", "0"], "of /x: there is no"),
    ],
)
def test_a_command_line_at_fault(words: list[str], told: str) -> None:
    pytest.importorskip("dovetail_plugins")  # --log-level names a value
    parser = Parser(prog="dovetail serve", description="")
    add_serve_arguments(parser)
    with pytest.raises(ConfigError) as caught:
        ServeCommand(NoOptions()).run(parser.parse(words))
    assert told in str(caught.value)


def test_other_commands_take_one_model() -> None:
    parser = Parser(prog="dovetail inspect", description="")
    add_serve_arguments(parser)
    with pytest.raises(ConfigError, match="room for one model, and 2 are named"):
        parse_config(parser.parse(["/x", "/y"]))


def test_flags_of_the_gateway_reach_it() -> None:
    flags = {"load_wait_s": 7, "models_memory_bytes": "2K", "max_loaded_models": 3}
    fleet = fleet_of(Config.from_fields(flags), Rig("a", "b").models)
    assert (fleet.wait_s, fleet.limit_bytes, fleet.max_loaded) == (7.0, 2048, 3)


def test_a_sample_gets_the_models_name_once() -> None:
    assert labelled("x 1", 'a"b') == 'x{model_name="a\\"b"} 1'
    assert labelled('x{le="1"} 1 2', "a") == 'x{model_name="a",le="1"} 1 2'
    assert labelled('x{e="0",model_name="m"} 1', "a") == 'x{e="0",model_name="m"} 1'


def test_adapters_are_names_of_their_model(tmp_path: Path) -> None:
    text = (
        "models:\n"
        "- {model: /x, served_model_name: a, enable_lora: true, lora_modules: [sql=/s, poems=/p]}\n"
        "- {model: /y, served_model_name: b}\n"
    )
    first, second = of_file(tmp_path, text)
    assert (first.names, first.every_name) == (("a",), ("a", "sql", "poems"))
    assert second.every_name == ("b",)
    assert child_fields(first, "/s")["served_model_name"] == ("a",)
    need = MemoryNeed(num_bytes=0, context_tokens=8, is_host=True, free_bytes=lambda: None)
    models = [GatewayModel(entry, need) for entry in (first, second)]
    fleet = Fleet(models, start=lambda _: pytest.fail("nothing starts"), wait_s=0)
    assert asyncio.run(fleet.find("poems")) is models[0]
    with pytest.raises(ConfigError, match='two models are called "sql"'):
        of_file(tmp_path, text.replace("name: b}", "name: sql}"))
    for flag in ("allow_runtime_lora_updating: true", "lora_resolver_cache_dir: /z"):
        with pytest.raises(ConfigError, match="which model a name belongs to"):
            of_file(tmp_path, text.replace("name: b}", f"name: b, {flag}}}"))
