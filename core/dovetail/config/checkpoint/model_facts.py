"""ModelFacts: what must be known of a model type before its code is imported. One table for all.

Core asks `facts_of(config)` and names no model type anywhere else. A type that is not in the table
has rotary positions and nothing unusual. Imports no torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

from dovetail.config.checkpoint.hf_defaults import CLASS_DEFAULTS

Positions = Literal["rotary", "learned", "sinusoidal", "alibi", "relative", "none"]


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelFacts:
    """Facts of one model type.

    `positions`: how a token's position is told; a learned table has an end. `length_is_scaled`:
    max_position_embeddings is the length after RoPE scaling. `has_two_rotary_tables`: windowed
    layers rotate by another rule. `stores_inputs_first`: ends of the names of matrices that are
    stored [I, O]; `quantized_is_readable`: quantized copies of such checkpoints can be loaded.
    `defaults`: what config.json may leave out.
    """

    positions: Positions = "rotary"
    overflows_in_float16: bool = False
    length_is_scaled: bool = False
    has_two_rotary_tables: bool = False
    stores_inputs_first: tuple[str, ...] = ()
    quantized_is_readable: bool = True
    defaults: Mapping[str, Any] = field(default_factory=dict)


_OF_POSITIONS: dict[Positions, tuple[str, ...]] = {
    "alibi": ("bloom", "mpt"),
    "learned": (
        *("bert", "bert-generation", "big_bird", "biogpt", "camembert", "data2vec-text"),
        *("electra", "ernie", "gpt-sw3", "gpt2", "gpt_bigcode", "gpt_neo", "megatron-bert"),
        *("openai-gpt", "opt", "plbart", "prophetnet", "rembert", "roberta"),
        *("roberta-prelayernorm", "roc_bert", "xlm-roberta", "xlm-roberta-xl", "xmod"),
    ),
    "none": ("mamba", "mamba2", "rwkv", "xlstm", "zamba"),
    "relative": ("cpmant", "xlnet"),
    "sinusoidal": ("ctrl", "pegasus", "xglm"),
}
"""Source: the modelling files of transformers 5; a test compares."""

_GEMMA3 = {"overflows_in_float16": True, "length_is_scaled": True, "has_two_rotary_tables": True}
_UNUSUAL: dict[str, dict[str, Any]] = {
    "gemma2": {"overflows_in_float16": True},
    "gemma3": _GEMMA3,
    "gemma3_text": _GEMMA3,
    "gpt2": {"stores_inputs_first": (".c_attn.weight", ".c_proj.weight", ".c_fc.weight")},
    "openai-gpt": {"quantized_is_readable": False},
}


def _table() -> dict[str, ModelFacts]:
    of_type = {name: positions for positions, names in _OF_POSITIONS.items() for name in names}
    return {
        name: ModelFacts(
            positions=of_type.get(name, "rotary"),
            defaults=CLASS_DEFAULTS.get(name, {}),
            **_UNUSUAL.get(name, {}),
        )
        for name in {*of_type, *CLASS_DEFAULTS, *_UNUSUAL}
    }


MODEL_FACTS: dict[str, ModelFacts] = _table()
"""Model type, as config.json has it -> its facts."""


def facts_of(config: Mapping[str, Any]) -> ModelFacts:
    """Return the facts of the model type that a config.json names."""
    return MODEL_FACTS.get(str(config.get("model_type")), _USUAL)


def has_rotary(config: Mapping[str, Any]) -> bool:
    """Return whether a model's positions are rotations; some types have ALiBi by a switch."""
    return facts_of(config).positions == "rotary" and not config.get("alibi")


_USUAL = ModelFacts()
