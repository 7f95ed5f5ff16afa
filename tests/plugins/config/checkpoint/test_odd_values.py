"""Values of the wrong kind in a checkpoint's files: every one is read, or refused by the file's
name, never an error of Python's."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dovetail.config.checkpoint.hf import load_model_facts
from dovetail.config.checkpoint.odd_values import odd_keys, odd_values_named
from dovetail.errors import ConfigError

pytest.importorskip("dovetail_plugins")

ODD = {
    "null": "null",
    "negative": "-1",
    "infinite": "1e400",
    "text": '"xxxxxxxxxx"',
    "list": "[]",
    "object": "{}",
    "deep": "[" * 300 + "]" * 300,
    "half a character": '"\\ud800"',
    "true": "true",
    "a list of null": "[null]",
    "a list of objects": '[{"a": 1}]',
    "huge": "1" + "0" * 25,
}
ROPE = {"rope_type": "linear", "factor": 2.0}
LLAMA: dict[str, Any] = {
    "architectures": ["LlamaForCausalLM"], "model_type": "llama", "vocab_size": 100,
    "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "head_dim": 16, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
    "rope_theta": 1e4, "rope_scaling": ROPE, "torch_dtype": "float32", "dtype": "float32",
    "tie_word_embeddings": False, "eos_token_id": 1, "bos_token_id": 0, "pad_token_id": 0,
    "hidden_act": "silu", "attention_bias": False, "mlp_bias": False, "text_config": None,
    "quantization_config": {"quant_method": "fp8"}, "layer_types": ["full_attention"] * 2,
    "sliding_window": 4, "auto_map": {}, "rope_parameters": ROPE, "partial_rotary_factor": 0.5,
    "is_encoder_decoder": False, "text_model_id": None, "transformers_version": "4",
}  # fmt: skip
GENERATION: dict[str, Any] = {
    "temperature": 1.0, "top_p": 1.0, "top_k": 1, "eos_token_id": 1, "bos_token_id": 1,
    "repetition_penalty": 1.0, "max_new_tokens": 5, "suppress_tokens": [1], "min_p": 0.1,
    "forced_bos_token_id": 1,
}  # fmt: skip
PLAIN = {
    key: value
    for key, value in LLAMA.items()
    if key not in ("rope_scaling", "quantization_config", "sliding_window", "layer_types")
}


def texts(settings: dict[str, Any], raw: str) -> Iterator[tuple[str, str]]:
    """Yield each key with the settings as JSON in which it has the value `raw`."""
    places = [(key,) for key in settings]
    places += [(k, j) for k, v in settings.items() if isinstance(v, dict) for j in v]
    for place in places:
        changed = copy.deepcopy(settings)
        at = changed
        for key in place[:-1]:
            at = at[key]
        at[place[-1]] = "@"
        yield ".".join(place), json.dumps(changed).replace('"@"', raw)


@pytest.mark.parametrize("odd", ODD)
@pytest.mark.parametrize(
    ("name", "settings"), [("config.json", LLAMA), ("generation_config.json", GENERATION)]
)
def test_an_odd_value_is_read_or_refused_by_its_file(
    name: str, settings: dict[str, Any], odd: str, tmp_path: Path
) -> None:
    (tmp_path / "config.json").write_text(json.dumps(PLAIN), encoding="utf-8")
    for key, text in texts(settings, ODD[odd]):
        (tmp_path / name).write_text(text, encoding="utf-8")
        try:
            load_model_facts(tmp_path)
        except ConfigError as error:
            assert name in str(error), (key, str(error))


@pytest.mark.parametrize("value", [-1, "x", [1]])
def test_rotary_settings_of_another_kind_name_the_file_and_the_key(
    value: Any, tmp_path: Path
) -> None:
    text = json.dumps(LLAMA | {"rope_scaling": value})
    (tmp_path / "config.json").write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"config\.json: rope_scaling.*cannot be used"):
        load_model_facts(tmp_path)


def test_what_is_nobody_s_odd_value_stays_what_it_is(tmp_path: Path) -> None:
    assert odd_keys(LLAMA) == []
    with pytest.raises(KeyError), odd_values_named(tmp_path, LLAMA):
        raise KeyError("mine")
