"""Flags about adapters: the room, the adapters of the start, where others are found."""

from __future__ import annotations

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from dovetail import registry
from dovetail.config.checkpoint.sources.adapter_path import find_adapter
from dovetail.config.checkpoint.sources.hub import Hub
from dovetail.config.config import Config
from dovetail.config.rules.adapters import (
    adapter_search,
    adapter_spec,
    check_adapter_flags,
    first_adapters,
)
from dovetail.config.rules.checks import check_supported
from dovetail.config.rules.model.checkpoint import hub_of, served_names
from dovetail.errors import ConfigError
from dovetail.interfaces.adapter import AdapterMethod
from dovetail.interfaces.data.adapter_spec import AdapterSource, AdapterSpec
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.interfaces.plugin import Info
from dovetail_testing.fakes.async_engine import fake_spec

pytest.importorskip("dovetail_plugins")

MODEL = fake_spec().run.model
TOKENIZER = fake_spec().tokenizer


def adapter(folder: Path, **config: Any) -> Path:
    folder.mkdir(parents=True)
    (folder / "adapter_config.json").write_text(json.dumps({"peft_type": "LORA"} | config))
    (folder / "adapter_model.safetensors").touch()
    return folder


def spec_of(**fields: Any) -> EngineSpec:
    """Return what the rules make of the flags, in a spec that is otherwise made up."""
    config = Config.from_fields({"model": MODEL.path, **fields})
    check_supported(config)
    check_adapter_flags(config)
    names = served_names(config.model)
    return fake_spec(
        room=adapter_spec(config.lora, config.prompt_adapter, config.plugin, MODEL, TOKENIZER),
        adapters=first_adapters(
            config.lora, config.prompt_adapter, hub_of(config.model, config.load), names
        ),
        adapter_search=adapter_search(
            config.model,
            config.lora,
            config.plugin,
            names,
            hub_of(config.model, config.load),
            MODEL,
        ),
    )


def room(**fields: Any) -> AdapterSpec:
    found = spec_of(enable_lora=True, **fields).run.adapters
    assert found is not None
    return found


def test_without_the_flag_there_is_no_room() -> None:
    spec = spec_of()
    assert spec.run.adapters is None
    assert (spec.adapters, spec.adapter_search.resolvers) == ((), ())


def test_every_flag_has_its_place() -> None:
    found = room()
    assert (found.max_slots, found.max_rank, found.max_host) == (1, 16, 1)
    assert (found.takes_bias, found.rope_factors) == (False, ())
    assert (found.max_added_tokens, found.tokenizer) == (256, TOKENIZER)
    assert [one.name for one in found.methods] == registry.names("adapter")
    found = room(
        max_loras=3,
        max_lora_rank=17,
        max_cpu_loras=9,
        lora_dtype="float16",
        enable_lora_bias=True,
        long_lora_scaling_factors=["4", "2,8"],
        lora_extra_vocab_size=7,
    )
    assert found.max_added_tokens == 7
    assert (found.max_slots, found.max_rank, found.max_host) == (3, 17, 9)
    assert (found.dtype, found.takes_bias) == ("float16", True)
    assert found.rope_factors == (4.0, 2.0, 8.0)
    assert room(max_loras=4).max_host == 4


def test_the_type_is_that_of_the_weights_unless_a_flag_says() -> None:
    spec = spec_of(enable_lora=True)
    assert spec.run.adapters is not None
    assert spec.run.adapters.dtype == (MODEL.weight_dtype or MODEL.dtype)


@pytest.mark.parametrize("rank", [1, 8, 16, 32, 64, 128, 256, 320, 512])
def test_ranks(rank: int) -> None:
    assert Config.from_fields({"max_lora_rank": rank}).lora.max_lora_rank == rank


@pytest.mark.parametrize(
    ("fields", "where", "text"),
    [
        ({"lora_modules": ["a=b"]}, "--lora-modules", "--enable-lora"),
        ({"lora_resolvers": ["folder"]}, "--lora-resolvers", "--enable-lora"),
        ({"lora_resolver_cache_dir": "x"}, "--lora-resolver-cache-dir", "--enable-lora"),
        ({"prompt_adapters": ["a=b"]}, "--prompt-adapters", "--enable-prompt-adapter"),
        ({"enable_lora": True, "max_loras": 4, "max_cpu_loras": 3}, "--max-cpu-loras", "fewer"),
        ({"enable_lora": True, "max_lora_rank": 513}, "--max-lora-rank", "513"),
        ({"enable_lora": True, "max_loras": 0}, "--max-loras", "0"),
        ({"enable_lora": True, "lora_resolvers": ["nobody"]}, "--lora-resolvers", "nobody"),
        ({"enable_lora": True, "lora_resolvers": ["folder"]}, "--lora-resolvers", "no folder"),
        ({"enable_lora": True, "lora_resolver_cache_dir": "/no/such"},
         "--lora-resolver-cache-dir", "/no/such"),
        ({"default_mm_loras": {"audio": "x"}}, "--default-mm-loras", "--enable-lora"),
        ({"enable_lora": True, "long_lora_scaling_factors": ["x"]},
         "--long-lora-scaling-factors", "not a factor"),
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused(fields: dict[str, Any], where: str, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        spec_of(**fields)
    assert (caught.value.where or "").startswith(where)
    assert text in str(caught.value)


def test_sizes_without_adapters_are_told_and_do_no_harm(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        spec_of(max_loras=4, allow_runtime_lora_updating=True, max_prompt_adapters=2)
    assert caplog.messages == [
        "--max-loras has no effect: it needs --enable-lora",
        "--allow-runtime-lora-updating has no effect: it needs --enable-lora",
        "--max-prompt-adapters has no effect: it needs --enable-prompt-adapter",
    ]


def test_flags_that_change_nothing_are_told(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.WARNING):
        spec_of(enable_lora=True, fully_sharded_loras=True)
    assert caplog.messages == [
        "--fully-sharded-loras has no effect: each matrix of an adapter is divided as its layer is",
    ]


def test_adapters_of_the_start(tmp_path: Path) -> None:
    first, second = adapter(tmp_path / "first"), adapter(tmp_path / "second")
    told = json.dumps({"name": "b", "path": str(second), "base_model_name": "org/base"})
    spec = spec_of(enable_lora=True, lora_modules=[f"a={first}", told])
    assert spec.adapters == (
        AdapterSource(name="a", path=str(first)),
        AdapterSource(name="b", path=str(second), base="org/base"),
    )


@pytest.mark.parametrize(
    ("texts", "text"),
    [
        (["a"], "NAME=PATH"),
        (["=x"], "NAME=PATH"),
        (["a="], "NAME=PATH"),
        (['{"name": "a"}'], "'path' is missing"),
        (['{"name": 1, "path": "b"}'], "are texts"),
        (['{"name": "a", "path": ""}'], "are texts"),
        (["{"], "does not describe"),
        (["a={0}", "a={0}"], "another adapter"),
        (["served={0}"], "the model"),
        (["a={0}/none"], "{0}/none"),
        (["a={0}/.."], "adapter_config.json"),
        (["a={0}/adapter_config.json"], "is a file"),
        (["a=org/none"], "org/none"),
    ],
)
def test_adapters_that_cannot_be_served_are_told_with_their_flag(
    tmp_path: Path, texts: list[str], text: str
) -> None:
    there = str(adapter(tmp_path / "there"))
    texts = [one.replace("{0}", there) for one in texts]
    config = Config.from_fields({"enable_lora": True, "lora_modules": texts})
    with pytest.raises(ConfigError) as caught:
        first_adapters(config.lora, config.prompt_adapter, Hub(cache=str(tmp_path)), ("served",))
    assert (caught.value.where or "").startswith("--lora-modules")
    assert text.replace("{0}", there) in str(caught.value)


def test_a_hub_id_is_found_in_the_cache(tmp_path: Path) -> None:
    repo = tmp_path / "models--org--poems"
    folder = adapter(repo / "snapshots" / ("a" * 40))
    (repo / "refs").mkdir()
    (repo / "refs" / "main").write_text("a" * 40)
    assert find_adapter("org/poems", Hub(cache=str(tmp_path)), where="x") == folder
    (folder / "adapter_model.safetensors").unlink()  # a download that was not finished
    with pytest.raises(ConfigError, match="HF_HUB_OFFLINE"):
        find_adapter("org/poems", Hub(cache=str(tmp_path)), where="x")


def test_the_older_flag_of_quantized_weights_loads_its_adapter(tmp_path: Path) -> None:
    folder = str(adapter(tmp_path / "q"))
    spec = spec_of(qlora_adapter_name_or_path=folder)
    assert spec.run.adapters is not None
    assert spec.adapters == (AdapterSource(name=folder, path=folder),)


class Prompts(AdapterMethod):
    """A method that puts vectors before prompts."""

    info = Info(summary="test method")
    capabilities = frozenset({"prompt"})

    def __init__(self, options: Any, model: Any) -> None:
        self.options = options

    def read(self, folder: Path, config: Any) -> Any:
        """Read nothing: no engine runs here."""
        raise NotImplementedError


def test_prompt_adapters_where_a_plugin_reads_them(tmp_path: Path) -> None:
    folder = adapter(tmp_path / "p")
    fields = {
        "enable_prompt_adapter": True,
        "max_prompt_adapters": 3,
        "max_prompt_adapter_token": 20,
        "prompt_adapters": [f"p={folder}"],
    }
    with registry.admin.with_entries({"adapter": {"prompts": f"{__name__}:Prompts"}}):
        spec = spec_of(**fields)
        both = spec_of(**fields, enable_lora=True, max_loras=2)
    found = spec.run.adapters
    assert found is not None
    assert (found.max_slots, found.max_prompt_slots, found.max_prompt_tokens) == (3, 3, 20)
    assert (found.max_rank, found.max_host) == (0, 3)
    assert [one.name for one in spec.adapters] == ["p"]
    assert both.run.adapters is not None
    assert (both.run.adapters.max_slots, both.run.adapters.max_host) == (5, 5)


def test_resolvers(tmp_path: Path) -> None:
    spec = spec_of(
        enable_lora=True,
        lora_resolver_cache_dir=str(tmp_path),
        served_model_name=["base"],
        download_dir="/hub",
    )
    search = spec.adapter_search
    assert [(one.name, one.options) for one in search.resolvers] == [
        ("folder", {"path": str(tmp_path)})
    ]
    assert search.base_names == ("base", MODEL.path)
    assert search.hub_cache == "/hub"
    named = spec_of(
        enable_lora=True,
        lora_resolvers=["folder"],
        plugin_options={"adapter_resolver": {"folder": {"path": str(tmp_path)}}},
    )
    assert named.adapter_search.resolvers == search.resolvers
