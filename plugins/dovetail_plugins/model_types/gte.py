"""Facts of GTE's encoders, under the name of their first code ("new") and that of transformers."""

from __future__ import annotations

import dataclasses

from dovetail.interfaces.data.model_facts import ModelFacts
from dovetail.interfaces.plugin import Value
from dovetail_plugins.model_types import bert

_DEFAULTS = {**bert.FACTS.defaults, "type_vocab_size": 1}
FACTS = ModelFacts(
    length_is_scaled=True,
    is_encoder=True,
    pooler="cls",
    classes_pooler="cls",
    defaults={
        **_DEFAULTS,
        "vocab_size": 30528,
        "max_position_embeddings": 2048,
        "rope_theta": 10000.0,
    },
)
LATER = dataclasses.replace(
    FACTS,
    defaults={**_DEFAULTS, "vocab_size": 250048, "max_position_embeddings": 8192},
)

NEW = Value(summary="GTE's encoder by its first code", value=FACTS)
GTE = Value(summary="GTE's encoder", value=LATER)
