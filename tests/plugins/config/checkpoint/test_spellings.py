"""Settings that config.json may hold under two names: one reader, whichever name is used."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dovetail.config.checkpoint.context_length import checkpoint_tokens
from dovetail.config.checkpoint.dtypes import stored_dtype
from dovetail.config.checkpoint.hf import load_model_facts
from dovetail.config.checkpoint.rope import with_rope
from dovetail.config.checkpoint.spellings import override, settled
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.layers.attention.rotary import rope_values

pytest.importorskip("dovetail_plugins")
transformers = pytest.importorskip("transformers")

LINEAR = {"rope_type": "linear", "factor": 4.0}
LLAMA: dict[str, Any] = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "vocab_size": 100,
    "hidden_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 128,
}
PLAIN = {"rope_type": "default", "rope_theta": 500.0}
YARN = {"rope_type": "yarn", "factor": 2.0, "original_max_position_embeddings": 64}


def facts(folder: Path, config: dict[str, Any], **overrides: Any) -> ModelSpec:
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return load_model_facts(folder, overrides=overrides)


def rule(model: ModelSpec) -> dict[str, Any]:
    """Return what the layers read that the tests compare."""
    values = rope_values(model.hf_config)
    return {key: values.get(key) for key in ("rope_type", "type", "factor", "rope_theta")}


@pytest.mark.parametrize("name", ["rope_scaling", "rope_parameters"])
@pytest.mark.parametrize(
    "stored",
    [
        {"rope_parameters": PLAIN},
        {"rope_parameters": YARN | {"rope_theta": 500.0}},
        {"rope_theta": 500.0},
        {"rope_theta": 500.0, "rope_scaling": {"type": "yarn", "factor": 2.0}},
        {"rope_theta": 500.0, "rope_scaling": None},
        {"rope_scaling": {"type": "dynamic", "factor": 3.0}, "rope_parameters": PLAIN},
    ],
)
def test_an_override_scales_whatever_name_the_file_uses(
    tmp_path: Path, name: str, stored: dict[str, Any]
) -> None:
    model = facts(tmp_path, LLAMA | stored, **{name: LINEAR})
    assert rule(model) == {**LINEAR, "type": None, "rope_theta": 500.0}
    assert checkpoint_tokens(model) == 512
    as_flag = with_rope(facts(tmp_path, LLAMA | stored).hf_config, None, LINEAR)
    assert rope_values(as_flag) == rope_values(model.hf_config)


def test_a_file_with_both_is_read_as_transformers_reads_it(tmp_path: Path) -> None:
    own = {"rope_scaling": LINEAR, "rope_parameters": {**YARN, "rope_theta": 10000.0}}
    model = facts(tmp_path, LLAMA | own)
    theirs = transformers.AutoConfig.from_pretrained(tmp_path).rope_parameters
    assert rule(model) == {**theirs, "type": None}
    assert checkpoint_tokens(model) == 512


def test_the_older_word_for_a_rule_replaces_the_newer_one(tmp_path: Path) -> None:
    config = LLAMA | {"rope_parameters": YARN | {"rope_theta": 500.0}}
    model = facts(tmp_path, config, rope_scaling={"type": "linear", "factor": 4.0})
    assert rule(model) == {"rope_type": None, "type": "linear", "factor": 4.0, "rope_theta": 500.0}


def test_null_takes_the_rule_away_and_leaves_the_base(tmp_path: Path) -> None:
    model = facts(
        tmp_path, LLAMA | {"rope_parameters": YARN | {"rope_theta": 5.0}}, rope_scaling=None
    )
    assert model.hf_config["rope_parameters"] == {"rope_theta": 5.0}
    assert checkpoint_tokens(model) == 128


def test_an_override_of_the_base_reaches_the_layers(tmp_path: Path) -> None:
    assert (
        rule(facts(tmp_path, LLAMA | {"rope_parameters": PLAIN}, rope_theta=9.0))["rope_theta"]
        == 9.0
    )
    nested = {"full_attention": PLAIN, "sliding_attention": PLAIN}
    model = facts(tmp_path, LLAMA | {"rope_parameters": nested}, rope_theta=9.0)
    assert rope_values(model.hf_config, "full_attention")["rope_theta"] == 9.0
    assert rope_values(model.hf_config, "sliding_attention")["rope_theta"] == 500.0


def test_a_rule_without_a_layer_type_is_about_layers_that_see_everything(tmp_path: Path) -> None:
    nested = {"full_attention": PLAIN, "sliding_attention": PLAIN}
    model = facts(tmp_path, LLAMA | {"rope_parameters": nested}, rope_scaling=LINEAR)
    assert model.hf_config["rope_parameters"] == {
        "full_attention": {"rope_theta": 500.0, **LINEAR},
        "sliding_attention": PLAIN,
    }


def test_the_trained_length_of_a_rule_counts_where_the_file_has_its_own(tmp_path: Path) -> None:
    phi3 = LLAMA | {"model_type": "phi3", "rope_parameters": PLAIN}
    model = facts(tmp_path, phi3, rope_scaling=YARN)
    assert rope_values(model.hf_config)["original_max_position_embeddings"] == 64
    assert checkpoint_tokens(model) == 128


def test_sections_of_positions_stay_with_another_rule(tmp_path: Path) -> None:
    stored = {"type": "mrope", "mrope_section": [2, 3, 3]}
    own = LLAMA | {"rope_scaling": stored, "rope_theta": 500.0}
    for config in (
        facts(tmp_path, own, rope_scaling=LINEAR).hf_config,
        with_rope(facts(tmp_path, own).hf_config, None, LINEAR),
    ):
        assert rope_values(config)["mrope_section"] == [2, 3, 3]


def test_rotary_settings_that_are_no_object_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="is not an object"):
        facts(tmp_path, LLAMA, rope_scaling=4)


@pytest.mark.parametrize(("one", "other"), [("dtype", "torch_dtype"), ("torch_dtype", "dtype")])
def test_an_override_of_the_type_counts_by_either_name(
    tmp_path: Path, one: str, other: str
) -> None:
    model = facts(tmp_path, LLAMA | {one: "float16"}, **{other: "bfloat16"})
    assert stored_dtype(model.hf_config) == "bfloat16"


def aliases() -> list[tuple[str, str, str]]:
    """Return every setting with two names that transformers knows of the types with such here."""
    from dovetail_plugins.model_types._other_names import other_names

    mapping = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    return [
        (kind, other, own)
        for kind in sorted(other_names())
        for other, own in sorted(mapping[kind].attribute_map.items())
        if other != own
    ]


@pytest.mark.parametrize(("kind", "other", "own"), aliases())
def test_each_other_name_of_transformers_is_read_as_it_reads_it(
    kind: str, other: str, own: str
) -> None:
    stored = {"model_type": kind, other: 7, own: 3}
    assert settled(stored)[own] == 7
    assert settled({"model_type": kind, other: 7})[own] == 7
    for first, second in ((other, own), (own, other)):
        changed = {"model_type": kind, first: 3}
        override(changed, {second: 7})
        assert settled(changed)[own] == 7


def test_every_type_with_other_names_is_in_the_table() -> None:
    from transformers.models.auto import modeling_auto

    from dovetail_plugins.model_types._other_names import other_names

    mapping = transformers.models.auto.configuration_auto.CONFIG_MAPPING
    for kind in {
        *modeling_auto.MODEL_FOR_CAUSAL_LM_MAPPING_NAMES,
        *modeling_auto.MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES,
        *modeling_auto.MODEL_FOR_SPEECH_SEQ_2_SEQ_MAPPING_NAMES,
    }:
        wanted = {a: b for a, b in mapping[kind].attribute_map.items() if a != b}
        assert dict(other_names().get(kind, {})) == wanted, kind


GEMMA3: dict[str, Any] = {
    "model_type": "gemma3",
    "architectures": ["Gemma3ForConditionalGeneration"],
    "dtype": "bfloat16",
    "eos_token_id": 1,
    "text_config": {
        **LLAMA,
        "model_type": "gemma3_text",
        "dtype": "float32",
        "eos_token_id": 2,
        "rope_parameters": PLAIN,
    },
    "vision_config": {"hidden_size": 32},
}


@pytest.mark.parametrize(
    ("key", "value", "read"),
    [
        ("max_position_embeddings", 999, "max_position_embeddings"),
        ("sliding_window", 77, "sliding_window"),
        ("hidden_size", 128, "hidden_size"),
        ("eos_token_id", 9, "eos_token_id"),
        ("torch_dtype", "float16", "dtype"),
        ("rms_norm_eps", 0.5, "rms_norm_eps"),
    ],
)
def test_an_override_without_a_part_is_of_the_text(
    tmp_path: Path, key: str, value: Any, read: str
) -> None:
    plain = facts(tmp_path, GEMMA3, text_config={key: value}).hf_config
    changed = facts(tmp_path, GEMMA3, **{key: value}).hf_config
    found = stored_dtype(changed) if read == "dtype" else changed[read]
    assert found == value
    assert stored_dtype(plain) == stored_dtype(changed)
    assert plain.get(read) == changed.get(read)


def test_an_override_of_rotary_settings_reaches_the_text(tmp_path: Path) -> None:
    model = facts(tmp_path, GEMMA3, rope_scaling=LINEAR)
    assert rule(model) == {**LINEAR, "type": None, "rope_theta": 500.0}
    assert rule(model) == rule(facts(tmp_path, GEMMA3, text_config={"rope_scaling": LINEAR}))


def test_an_override_of_the_part_counts_more(tmp_path: Path) -> None:
    both = {"sliding_window": 5, "text_config": {"sliding_window": 6}}
    assert facts(tmp_path, GEMMA3, **both).hf_config["sliding_window"] == 6


def test_what_is_of_the_whole_or_of_another_part_stays_there(tmp_path: Path) -> None:
    more = {"vision_config": {"hidden_size": 48}, "architectures": ["X"], "dtype": "float16"}
    model = facts(tmp_path, GEMMA3, **more)
    assert model.whole_config["vision_config"] == {"hidden_size": 48}
    assert model.architecture == "X"
    text = model.whole_config["text_config"]
    assert text["architectures"] == LLAMA["architectures"] and "vision_config" not in text
    assert model.whole_config["model_type"] == "gemma3" and text["model_type"] == "gemma3_text"


def test_older_names_of_layers_are_read_as_transformers_reads_them() -> None:
    from transformers import configuration_utils

    older = configuration_utils._LEGACY_LAYER_TYPE_REMAP
    for key in ("layer_types", "mtp_layer_types"):
        found = settled({"model_type": "llama", key: [*older, "sliding_attention"]})[key]
        assert found == [*older.values(), "sliding_attention"]


@pytest.mark.parametrize("kind", ["bart", "mbart", "marian", "pegasus", "whisper"])
def test_usual_names_mean_the_encoder_in_a_file_and_the_decoder_here(
    kind: str, tmp_path: Path
) -> None:
    """Files of Whisper large v3 turbo have 32 layers by the usual name, and 4 of the decoder."""
    sizes = {"d_model": 64, "decoder_layers": 3, "decoder_attention_heads": 2}
    stored = {"model_type": kind, "architectures": ["X"], **sizes}
    usual = {"num_hidden_layers": 5, "num_attention_heads": 4}
    model = facts(tmp_path, stored | usual)
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    assert (model.num_layers, model.num_heads, model.head_size) == (3, 2, 32)
    assert model.hf_config["encoder_layers"] == theirs.encoder_layers == 5
    assert model.hf_config["encoder_attention_heads"] == theirs.encoder_attention_heads == 4
    changed = facts(tmp_path, stored | {"encoder_layers": 2}, num_hidden_layers=7)
    assert changed.hf_config["encoder_layers"] == 7 and changed.num_layers == 3


def test_the_whole_decides_the_type_and_the_ends_as_in_transformers(tmp_path: Path) -> None:
    model = facts(tmp_path, GEMMA3)
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    ends = transformers.GenerationConfig.from_model_config(theirs).eos_token_id
    assert f"torch.{stored_dtype(model.hf_config)}" == str(theirs.dtype) == "torch.bfloat16"
    assert model.eos_token_ids == (ends,) == (1,)
    none = facts(tmp_path, GEMMA3 | {"eos_token_id": None, "dtype": None})
    theirs = transformers.AutoConfig.from_pretrained(tmp_path)
    ends = transformers.GenerationConfig.from_model_config(theirs).eos_token_id
    assert none.eos_token_ids == (ends,) == (2,)
    assert stored_dtype(none.hf_config) == "float32"


@pytest.mark.parametrize("place", ["the whole", "the part", "both"])
@pytest.mark.parametrize("key", ["quantization_config", "compression_config"])
def test_a_quantized_text_part_is_seen(tmp_path: Path, key: str, place: str) -> None:
    stored = {"quant_method": "compressed_tensors", "ignore": ["lm_head"]}
    config = GEMMA3 | ({key: stored} if place != "the part" else {})
    if place != "the whole":
        own = stored if place == "the part" else {"quant_method": "awq"}
        config = config | {"text_config": {**GEMMA3["text_config"], key: own}}
    found = facts(tmp_path, config).hf_config["quantization_config"]
    assert found == {"quant_method": "compressed-tensors", "ignore": ["lm_head"]}
