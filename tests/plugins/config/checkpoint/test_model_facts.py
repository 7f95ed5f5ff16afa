"""Facts of a model type: who declares them, who asks, and what happens where nobody does."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dovetail import registry
from dovetail.config.checkpoint.context_length import checkpoint_tokens, model_tokens
from dovetail.config.checkpoint.dtypes import chosen_dtypes
from dovetail.config.checkpoint.hf import load_model_facts
from dovetail.config.checkpoint.model_facts import facts_of, has_rotary
from dovetail.config.checkpoint.rope import with_rope
from dovetail.errors import AmbiguousPlugin, BrokenPlugin, ConfigError
from dovetail.interfaces.data.model_facts import ModelFacts, ModelFactsTable
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.platform import Platform, PlatformDefaults
from dovetail.interfaces.plugin import Info, Value
from dovetail_plugins.inspect.memory import tables_bytes

LEARNED = Value(
    summary="positions from a table, names and defaults of its own",
    value=ModelFacts(
        positions="learned",
        attribute_map={"num_hidden_layers": "depth", "num_attention_heads": "heads"},
        defaults={"heads": 4, "vocab_size": 96, "eos_token_id": 5},
    ),
)
SCALED = Value(summary="length after scaling", value=ModelFacts(length_is_scaled=True))
LARGE = Value(summary="large activations", value=ModelFacts(overflows_in_float16=True))
WRONG = Value(summary="a word in place of facts", value="learned")
TABLE = Value(
    summary="types of another's code",
    value=ModelFactsTable(
        types={"tabled": ModelFacts(positions="alibi"), "learned": ModelFacts(positions="none")}
    ),
)


@pytest.fixture(autouse=True)
def declared() -> Iterator[None]:
    own = {name: f"{__name__}:{name.upper()}" for name in ("learned", "scaled", "large", "wrong")}
    entries = {
        "model_type": own | {"transformers": f"{__name__}:TABLE"},
        "config_format": {"auto": f"{__name__}:CONFIG_FORMAT"},
    }
    with registry.admin.with_entries(entries, only=True):
        yield


CONFIG_FORMAT = Value(summary="config.json", value="dovetail.config.checkpoint.hf:read_config")


def spec_of(model_type: str, **config: Any) -> ModelSpec:
    return ModelSpec(
        path="m",
        architecture="A",
        hf_config={"model_type": model_type, **config},
        dtype="float32",
        vocab_size=8,
        hidden_size=64,
        num_layers=1,
        num_heads=1,
        num_kv_heads=1,
        head_size=64,
        max_position_tokens=128,
    )


def test_a_type_of_its_own_goes_before_the_table() -> None:
    assert facts_of({"model_type": "learned"}) is LEARNED.value
    assert facts_of({"model_type": "tabled"}).positions == "alibi"


@pytest.mark.parametrize("model_type", [None, ["a"], "no-such", "transformers"])
def test_unknown_types_are_usual(model_type: Any) -> None:
    assert facts_of({"model_type": model_type}) == ModelFacts()
    assert has_rotary({"model_type": model_type})
    assert facts_of({}) == ModelFacts()


def test_no_declaration_at_all_is_usual() -> None:
    with registry.admin.with_entries({}, only=True):
        assert facts_of({"model_type": "learned"}) == ModelFacts()


def test_another_value_is_a_broken_plugin() -> None:
    with pytest.raises(BrokenPlugin, match="str, not ModelFacts") as caught:
        facts_of({"model_type": "wrong"})
    assert caught.value.where == "model_type wrong"


def test_two_packages_that_declare_one_type_are_both_named() -> None:
    with (
        registry.admin.with_entries({"model_type": {"learned@other": f"{__name__}:SCALED"}}),
        pytest.raises(AmbiguousPlugin, match="other") as caught,
    ):
        facts_of({"model_type": "learned"})
    assert caught.value.where == "config.json: model_type"


def test_positions_decide_what_rope_flags_and_tables_mean() -> None:
    config = {"model_type": "learned"}
    with pytest.raises(ConfigError, match="no rotary embedding") as caught:
        with_rope(config, 10000.0, {})
    assert caught.value.where == "--rope-theta"
    assert tables_bytes(spec_of("learned"), 128) == 0
    assert tables_bytes(spec_of("scaled"), 128) > 0


def test_alibi_may_be_a_switch() -> None:
    assert has_rotary({"model_type": "falcon"})
    assert tables_bytes(spec_of("falcon"), 128) > 0
    assert tables_bytes(spec_of("falcon", alibi=True), 128) == 0
    with pytest.raises(ConfigError, match="no rotary embedding"):
        with_rope({"model_type": "falcon", "alibi": True}, 10000.0, {})


def test_a_table_of_positions_has_an_end() -> None:
    with pytest.raises(ConfigError, match="only 128 positions"):
        model_tokens(256, spec_of("learned"), may_exceed=True)
    assert model_tokens(256, spec_of("usual"), may_exceed=True) == 256


def test_a_length_may_be_stated_after_scaling() -> None:
    rope = {"rope_scaling": {"rope_type": "linear", "factor": 8.0}}
    assert checkpoint_tokens(spec_of("usual", **rope)) == 8 * 128
    assert checkpoint_tokens(spec_of("scaled", **rope)) == 128


class Half(Platform):
    """A device that takes what is stored."""

    info = Info(summary="for this test")

    def defaults(self) -> PlatformDefaults:
        return PlatformDefaults(worker="none")


def test_some_types_overflow_in_float16() -> None:
    config = {"model_type": "large", "torch_dtype": "float16"}
    assert chosen_dtypes("auto", config, Half(None)) == ("bfloat16", "bfloat16")
    with pytest.raises(ConfigError, match="large models overflow"):
        chosen_dtypes("float16", config, Half(None))


def test_names_and_defaults_of_a_family_are_read(tmp_path: Path) -> None:
    config = {"model_type": "learned", "architectures": ["A"], "hidden_size": 64, "depth": 3}
    (tmp_path / "config.json").write_text(json.dumps(config), encoding="utf-8")
    spec = load_model_facts(tmp_path)
    assert (spec.num_layers, spec.num_heads, spec.head_size) == (3, 4, 16)
    assert (spec.vocab_size, spec.eos_token_ids) == (96, (5,))
    assert spec.hf_config["num_hidden_layers"] == 3
    overridden = load_model_facts(tmp_path, overrides={"num_hidden_layers": 2})
    assert overridden.num_layers == 2
