"""Every key of PEFT's configs: used, seen in the tensors, of the training, or refused by name."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from dovetail.errors import ConfigError, RequestError
from dovetail.interfaces.data.adapter_spec import AdapterSource, AdapterSpec
from dovetail.interfaces.data.selection import Selection
from dovetail.runner.lora.runner_adapters import RunnerAdapters
from dovetail_plugins.adapters import ia3, lora, prompt
from dovetail_testing.contract import model_spec

peft = pytest.importorskip("peft")

OF_ALL = {"peft_type"}
NO_NUMBERS = {
    *("auto_mapping", "base_model_name_or_path", "inference_mode", "peft_version", "revision"),
    "task_type",
}
"""What was trained, from which model, with which version."""
IN_TENSORS = {
    *("exclude_modules", "layers_pattern", "layers_to_transform", "r", "rank_pattern"),
    *("target_modules", "modules_to_save", "bias", "lora_bias", "use_dora"),
}
"""What the names and shapes of the tensors say."""
OF_TRAINING = {
    *("lora_dropout", "eva_config", "corda_config", "loftq_config", "lora_ga_config"),
    *("qalora_group_size", "runtime_config"),
    *("megatron_config", "megatron_core", "fan_in_fan_out", "init_ia3_weights"),
}
"""How it was trained, or how PEFT holds the layer: tensors are stored alike, or refused by name."""
LORA_USED = {
    *("lora_alpha", "alpha_pattern", "use_rslora", lora.TIES, lora.INDICES, "target_parameters"),
    "init_lora_weights",
}


def test_every_variant_of_lora_is_computed_or_refused() -> None:
    """PEFT marks the keys that have a layer compute otherwise."""
    fields = dataclasses.fields(peft.LoraConfig)
    variants = {field.name for field in fields if field.metadata.get("is_lora_variant")}
    assert variants - lora.NOT_DONE.keys() == {"use_dora"}


def test_every_key_of_lora_is_used_or_refused() -> None:
    known = OF_ALL | NO_NUMBERS | IN_TENSORS | OF_TRAINING | LORA_USED | lora.NOT_DONE.keys()
    keys = {field.name for field in dataclasses.fields(peft.LoraConfig)}
    assert keys - known == set()
    assert lora.NOT_DONE.keys() <= keys


def test_every_key_of_ia3_is_used() -> None:
    known = OF_ALL | NO_NUMBERS | IN_TENSORS | OF_TRAINING | {"feedforward_modules"}
    assert {field.name for field in dataclasses.fields(peft.IA3Config)} - known == set()


PROMPT_IN_TENSORS = {"token_dim", "num_attention_heads", "num_layers", "modules_to_save"}
"""What the vectors' shape says; a tensor beside the vectors is refused by name."""
PROMPT_OF_TRAINING = {
    *("num_transformer_submodules", "prompt_tuning_init", "prompt_tuning_init_text"),
    *("tokenizer_name_or_path", "tokenizer_kwargs", "encoder_reparameterization_type"),
    *("encoder_hidden_size", "encoder_num_layers", "encoder_dropout"),
}
"""How the vectors were begun and learned: what is saved are the vectors that came of it."""


@pytest.mark.parametrize("kind", [peft.PromptTuningConfig, peft.PromptEncoderConfig])
def test_every_key_of_vectors_before_prompts_is_used(kind: type) -> None:
    known = OF_ALL | NO_NUMBERS | PROMPT_IN_TENSORS | PROMPT_OF_TRAINING | {prompt.NUM_TOKENS}
    assert {field.name for field in dataclasses.fields(kind)} - known == set()


def test_each_way_of_starting_that_changes_the_base_is_refused() -> None:
    """PEFT lists them where it turns such adapters into plain ones."""
    from inspect import getsource

    text = getsource(peft.tuners.lora.model.LoraModel._convert_state_dict_for_initial_model)
    for start in ("pissa", "corda", "olora", "lora_ga"):
        assert start in text and start.startswith(lora.CHANGES_BASE)


METHODS = {"lora": lora.LoraAdapter, "ia3": ia3.Ia3Adapter, "prompt": prompt.PromptAdapter}
SERVED = {kind for method in METHODS.values() for kind in method.peft_types}
KINDS = sorted(kind.value for kind in peft.mapping.PEFT_TYPE_TO_CONFIG_MAPPING)


def test_the_types_that_are_read() -> None:
    assert {"LORA", "IA3", "PROMPT_TUNING", "P_TUNING"} == SERVED <= set(KINDS)


@pytest.mark.parametrize("kind", [kind for kind in KINDS if kind not in SERVED])
def test_every_other_type_of_peft_is_refused_by_name(kind: str, tmp_path: Path) -> None:
    """As PEFT writes its config: X-LoRA, VeRA, LoHa, LoKr, OFT, BOFT, FourierFT and the rest."""
    names = {field.name for field in dataclasses.fields(peft.LoraConfig)}
    config = dict.fromkeys(names & {"r", "target_modules", "lora_alpha"}) | {"peft_type": kind}
    (tmp_path / "adapter_config.json").write_text(json.dumps(config))
    methods = tuple(
        Selection(kind="adapter", name=name, target=f"{found.__module__}:{found.__name__}")
        for name, found in METHODS.items()
    )
    spec = AdapterSpec(max_slots=1, max_rank=8, dtype="float32", takes_bias=True, methods=methods)
    run: Any = SimpleNamespace(model=model_spec())
    adapters = RunnerAdapters(spec, run, torch.device("cpu"))
    with pytest.raises((ConfigError, RequestError), match=rf"'{kind}' are not supported"):
        adapters.prepare(AdapterSource(name="x", path=str(tmp_path), key="x"))
