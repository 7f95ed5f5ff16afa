"""Class names of checkpoints: their model family, and the head on the hidden states."""

from __future__ import annotations

from dovetail import registry
from dovetail.interfaces.data.spec import (
    CLASSES,
    LOGITS,
    MIXED,
    NOTHING,
    TOKEN_CLASSES,
    TOKEN_VECTORS,
    WORD_WEIGHTS,
)

GENERATES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "MTModel")
"""Suffixes of classes that generate."""
PROCESS_REWARD, REWARD = "ForProcessRewardModel", "ForRewardModel"
_POOLS = {
    "_ColBERT": TOKEN_VECTORS,
    "SpladeSparseEmbeddingModel": WORD_WEIGHTS,
    "M3EmbeddingModel": MIXED,
    "ForRetrieval": TOKEN_VECTORS,
    "ForSequenceClassification": CLASSES,
    "ForTokenClassification": TOKEN_CLASSES,
    PROCESS_REWARD: TOKEN_CLASSES,
    REWARD: TOKEN_CLASSES,
    "ForMaskedLM": NOTHING,
    "ForPreTraining": NOTHING,
    "EncoderModel": NOTHING,
    "Model": NOTHING,
}
"""Suffixes of classes that do not generate -> the head on their hidden states."""

_VARIANTS = ("Text", "Bidirectional")
"""Words after a family's name: its text part alone, or a variant with bidirectional attention."""


def stem(architecture: str) -> tuple[str, str | None]:
    """Return (family, head) of a class name; head None: the name does not say."""
    for end in GENERATES:
        if architecture.endswith(end):
            return _family(architecture, end), LOGITS
    for end, head in _POOLS.items():
        if architecture.endswith(end) and architecture != end:
            return _family(architecture, end), head
    return architecture, None


def _family(architecture: str, end: str) -> str:
    """Return the start of a class name, without words for a variant of its family."""
    name = architecture.removesuffix(end)
    for word in _VARIANTS:
        name = name.removesuffix(word)
    return name


def registered(architecture: str, wanted: str | None = None) -> str | None:
    """Return the name of the model plugin that runs a class: its own, or its family's.

    `wanted` is the head to use if it differs from the name's. A family's decoder runs its pooling
    classes, unless the family has an encoder plugin; then that one does. An encoder does not
    generate.
    """
    names = set(registry.names("model"))
    family, named = stem(architecture)
    head = named if wanted is None else wanted
    ends = () if head == LOGITS else ("ForCausalLM", "LMHeadModel", "Model", "EncoderModel")
    beside = (family + "EncoderModel",) if head != LOGITS and named == LOGITS else ()
    tried = (*beside, architecture, *(family + end for end in ends))
    return next((name for name in tried if name in names), None)
