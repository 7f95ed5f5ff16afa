"""Architectures of transformers, tiny: served as transformers' own code computes them, or refused
with the reason, and `inspect` says the same. `make sweep` does it for all of them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.errors import ConfigError
from dovetail_plugins.inspect import trial
from dovetail_plugins.inspect.collect import inspect
from support.tiny_configs import tiny_config, write_tiny, write_tiny_whole
from support.verdicts import BACKED, FLAGS, NATIVE, REFUSED, verdict_of

ROOT = Path(__file__).resolve().parents[3]
SERVED = {
    "llama": NATIVE,
    "gpt_oss": NATIVE,  # experts with biases, inputs first
    "bloom": NATIVE,
    "falcon": NATIVE,
    "mpt": NATIVE,
    "gptj": NATIVE,
    "codegen": NATIVE,
    "deepseek_v3": NATIVE,  # what corrects scores, in the router; latents
    "apertus": NATIVE,
    "bamba": NATIVE,
    "granitemoehybrid": NATIVE,
    "jamba": NATIVE,
    "falcon_h1": NATIVE,  # and an infinity in config.json
    "mamba2": NATIVE,
    "gpt_bigcode": NATIVE,
    "persimmon": BACKED,
    "roberta": BACKED,  # positions that do not start at 0
    "bart": BACKED,  # the decoder alone, whose table of positions is told them
    "whisper": BACKED,  # the same, whose layers below the wrapper take positions
    "diffllama": BACKED,  # layers that attend twice
    "aria_text": BACKED,  # experts whose matrices are stored inputs first
    "beam": BACKED,  # experts whose gate is another's by another way
    "exaone": NATIVE,  # under Llama's class, by other names
    "sarvam_moe": NATIVE,  # the same of GLM-4.5's
    "lfm3_vl": NATIVE,  # the text part, behind another prefix
    "shieldgemma2": NATIVE,  # a config of its own for another's class
    "cohere2_vision": BACKED,  # the text part, whose own class scales logits and the whole's not
    "hyperclovax_vision_v2": BACKED,  # the text part of a whole that scales logits by its own code
    "janus": BACKED,  # the text part, beside what draws
    "emu3": BACKED,  # a class that transformers does not make of its config
    "mllama": BACKED,  # a model below the head under another name
    "hrm_text": BACKED,  # matrices stored joined
    "minimax_m3_vl": BACKED,  # the text part, whose stored matrices are joined
    "megatron-bert": BACKED,  # scores computed by the model's own code
    "roformer": BACKED,  # the same, whose queries and keys turn
    "mvp": BACKED,  # the same, heads in the batch
    "gpt_neox_japanese": BACKED,  # the same, added to nothing
    "openai-gpt": BACKED,  # the same, with a mask of its own
    "gemma3n_text": NATIVE,  # keys and values that layers share
    "gemma4_text": NATIVE,  # and layers of several shapes
    "gemma3": NATIVE,  # the text part, without a processor, of a model that takes images
}
NOT_SERVED = {
    "prophetnet": "counts positions itself",
    "doge": "computes with attention masks itself",
}


@pytest.mark.sampled(every=6)
@pytest.mark.parametrize("model_type", SERVED)
def test_served_as_transformers_computes(tmp_path: Path, model_type: str) -> None:
    verdict = verdict_of(write_tiny(tmp_path, model_type))
    assert (verdict.state, verdict.reason) == (SERVED[model_type], "")


@pytest.mark.parametrize("model_type", NOT_SERVED)
def test_refused_with_the_reason(tmp_path: Path, model_type: str) -> None:
    verdict = verdict_of(write_tiny(tmp_path, model_type))
    assert verdict.state == REFUSED
    assert NOT_SERVED[model_type] in verdict.reason
    assert "Error" not in verdict.reason


def test_text_part_of_a_whole_whose_layers_for_images_text_skips(tmp_path: Path) -> None:
    """Llama 3.2 Vision: every fourth layer attends to images alone, and the names are the hub's."""
    text = tiny_config("mllama").to_dict()["text_config"]
    text |= {"num_hidden_layers": 4, "cross_attention_layers": [1, 3]}
    path = write_tiny_whole(tmp_path, "mllama", "MllamaForConditionalGeneration", text_config=text)
    verdict = verdict_of(path)
    assert (verdict.state, verdict.reason) == (BACKED, "")


def test_models_that_are_not_decoders_are_told_apart(tmp_path: Path) -> None:
    """A class that transformers has for another task is not a misspelt name."""
    path = write_tiny(tmp_path, "llama")
    change(path, architectures=["LlamaForQuestionAnswering"])
    verdict = verdict_of(path)
    assert verdict.state == REFUSED
    assert "neither a decoder that takes text alone nor an encoder" in verdict.reason


def test_weights_that_do_not_fit_are_foreseen(tmp_path: Path) -> None:
    """`inspect` matches tensors by name and shape, as loading does."""
    path = write_tiny(tmp_path, "persimmon")
    change(path, intermediate_size=40)
    verdict = verdict_of(path)
    assert verdict.state == REFUSED
    assert "misfitting" in verdict.reason


REFUSED_BY_PLUGINS = {
    "falcon_h1": ({"hidden_act": "gelu"}, 'activation "gelu" is not supported'),
    "gpt2": ({"add_cross_attention": True}, "cross attention needs an encoder"),
    "olmoe": ({"clip_qkv": 8.0}, "bounded behind their norms"),
}
"""Settings that the constructors of dovetail's own models refuse."""


@pytest.mark.parametrize("model_type", REFUSED_BY_PLUGINS)
def test_what_own_models_refuse_is_foreseen(tmp_path: Path, model_type: str) -> None:
    path = write_tiny(tmp_path, model_type)
    fields, reason = REFUSED_BY_PLUGINS[model_type]
    change(path, **fields)
    verdict = verdict_of(path)
    assert verdict.state == REFUSED, verdict
    assert reason in verdict.reason


def test_weights_that_do_not_fit_an_own_model_are_foreseen(tmp_path: Path) -> None:
    path = write_tiny(tmp_path, "llama")
    change(path, intermediate_size=40)
    verdict = verdict_of(path)
    assert verdict.state == REFUSED
    assert "misfitting" in verdict.reason


def test_inspect_tries_out_in_a_process_of_its_own(tmp_path: Path) -> None:
    """Where torch is not imported it stays so; the child says the same."""
    served, refused = write_tiny(tmp_path / "a", "persimmon"), write_tiny(tmp_path / "b", "doge")
    for path in (served, refused):
        run = resolve(Config.from_fields({"model": str(path), **FLAGS})).run
        assert trial.tried_in_child(run) == trial.tried(run)
    assert inspect(Config.from_fields({"model": str(served), **FLAGS})).would_start
    assert not inspect(Config.from_fields({"model": str(refused), **FLAGS})).would_start


def test_a_config_that_transformers_refuses(tmp_path: Path) -> None:
    path = write_tiny(tmp_path, "persimmon")
    change(path, hidden_act="unheard-of")
    verdict = verdict_of(path)
    assert verdict.state == REFUSED
    assert "transformers cannot make it from this config.json" in verdict.reason


def test_lists_of_layers_keep_every_kind() -> None:
    config = tiny_config("qwen3_next")
    assert set(config.layer_types) == {"linear_attention", "full_attention"}
    assert config.num_hidden_layers == len(config.layer_types)


def test_a_type_that_is_not_there() -> None:
    with pytest.raises(ConfigError, match="no small config of unheard_of"):
        tiny_config("unheard_of")


def change(path: Path, **fields: Any) -> None:
    """Write other values into a checkpoint's config.json."""
    file = path / "config.json"
    file.write_text(json.dumps(json.loads(file.read_text()) | fields))


@pytest.mark.parametrize(
    ("file", "least"), [("architectures.json", 180), ("media_architectures.json", 80)]
)
def test_the_last_sweep_found_nothing_wrong(file: str, least: int) -> None:
    found = json.loads((ROOT / "docs" / "reference" / file).read_text())
    states = {one["state"] for one in found["results"].values()}
    assert states <= {NATIVE, BACKED, REFUSED, "unmade"}
    assert len(found["results"]) > least
