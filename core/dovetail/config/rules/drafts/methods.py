"""The drafter for a draft model's checkpoint, if --speculative-config names none.

Decided by config.json of published checkpoints; knows no plugin.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

LOOKUP_WORDS = ("[ngram]", "ngram")
"""Given instead of a draft model: drafts come from the request's own tokens."""
LOOKUP, WHOLE_MODEL, HEADS_OF_TARGET = "ngram", "draft_model", "mtp"
ASSISTANT = "assistant"
"""A small model in another checkpoint. Other servers call this method "mtp", too."""
SAME_METHODS = {"ngram_gpu": LOOKUP, "dspark": "dflash"}
"""Names that others give a method -> the one here."""
REFUSED_METHODS = {
    "extract_hidden_states": "it drafts nothing",
    "custom_class": 'your own class is the method itself, as "module:Class"',
}
"""Methods that others have -> why they are refused."""
_BY_MODEL_TYPE = {
    "dflash": "dflash",
    "dspark": "dflash",
    "medusa": "medusa",
    "mlp_speculator": "mlp_speculator",
    "eagle": "eagle",
    "eagle3": "eagle3",
}
_BY_CLASS = (
    ("Medusa", "medusa"),
    ("MLPSpeculator", "mlp_speculator"),
    ("DFlash", "dflash"),
    ("DSpark", "dflash"),
    ("Eagle3", "eagle3"),
    ("Eagle", "eagle"),
    ("MTP", HEADS_OF_TARGET),
    ("NextN", HEADS_OF_TARGET),
)
"""Part of a class name in `architectures` -> method; the first match wins."""
_BY_KEY = (
    ("medusa_num_heads", "medusa"),
    ("dflash_config", "dflash"),
    ("draft_vocab_size", "eagle3"),
)
"""Keys that only the configs of one method have."""


def method_for(config: Mapping[str, Any], name: str = "") -> str:
    """Return the method that drafts with a checkpoint of this config.json.

    It is draft_model for an ordinary model. `name` is the folder or repository: only it
    distinguishes the first EAGLE heads from a whole model of one layer.
    """
    model_type = str(config.get("speculators_model_type") or config.get("model_type") or "")
    if model_type in _BY_MODEL_TYPE:
        return _BY_MODEL_TYPE[model_type]
    if model_type.endswith(("_mtp", "_nextn")):
        return HEADS_OF_TARGET
    if model_type.endswith("_assistant"):
        return ASSISTANT
    classes = " ".join(map(str, config.get("architectures") or ())).lower()
    for part, method in _BY_CLASS:
        if part.lower() in classes:
            return method
    for key, method in _BY_KEY:
        if config.get(key) is not None:
            return method
    last = name.rstrip("/").rpartition("/")[2].lower()
    if "eagle" in last and config.get("num_hidden_layers") == 1:
        return "eagle3" if "eagle3" in last else "eagle"
    return WHOLE_MODEL
