"""The class that serves a checkpoint whose own class is unknown: by its model type, as the auto
classes of transformers have it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.config.checkpoint.model_facts import facts_of
from dovetail.config.rules.model.architectures import registered, stem
from dovetail.config.rules.model.transformers_models import known_classes
from dovetail.interfaces.data.spec import LOGITS

_OWN = {
    "baichuan": "BaichuanForCausalLM",
    "hyperclovax": "HyperCLOVAXForCausalLM",
    "internlm2": "InternLM2ForCausalLM",
    "internlm3": "InternLM3ForCausalLM",
    "kimi_k2": "DeepseekV3ForCausalLM",
    "mimo": "MiMoForCausalLM",
    "minicpm": "MiniCPMForCausalLM",
    "minimax_m1": "MiniMaxM1ForCausalLM",
    "minimax_text_01": "MiniMaxText01ForCausalLM",
    "new": "NewModel",
}
"""Model types that transformers does not have, and their classes here."""
_HEADS = (
    *("ForSequenceClassification", "ForTokenClassification", "ForProcessRewardModel"),
    *("ForRewardModel", "ForMaskedLM", "EncoderModel", "Model"),
)
"""Ends of class names that say which head a model has that does not generate."""


def is_known(architecture: str) -> bool:
    """Return whether a model plugin or transformers has the class."""
    return registered(architecture) is not None or architecture in known_classes().every


def class_of(raw: Mapping[str, Any], architecture: str = "") -> str | None:
    """Return the class of a config.json's model type with the head of an unknown class's name,
    None for an unknown type. A name that says no head has the type's usual one."""
    model_type = str(raw.get("model_type"))
    known, head = known_classes(), stem(architecture)[1]
    base = known.bases.get(model_type)
    generating = _OWN.get(model_type) or known.generating.get(model_type)
    if head == LOGITS or (head is None and generating and not facts_of(raw).is_encoder):
        return generating
    family = base or generating
    if family is None or head is None:
        return family
    end = next((end for end in _HEADS if architecture.endswith(end)), "")
    named = stem(family)[0] + end
    return named if is_known(named) else None
