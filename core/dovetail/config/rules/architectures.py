"""What the name of a checkpoint's class says: its family, and what stands on its hidden states."""

from __future__ import annotations

from dovetail import registry
from dovetail.interfaces.spec import CLASSES, LOGITS, NOTHING, TOKEN_CLASSES, TOKEN_VECTORS

GENERATES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration", "MTModel")
"""Ends of the names of classes that generate."""
PROCESS_REWARD, REWARD = "ForProcessRewardModel", "ForRewardModel"
_POOLS = {
    "_ColBERT": TOKEN_VECTORS,
    "ForSequenceClassification": CLASSES,
    "ForTokenClassification": TOKEN_CLASSES,
    PROCESS_REWARD: TOKEN_CLASSES,
    REWARD: TOKEN_CLASSES,
    "ForMaskedLM": NOTHING,
    "EncoderModel": NOTHING,
    "Model": NOTHING,
}
"""Ends of the names of classes that do not generate -> what stands on their hidden states."""

_VARIANTS = ("Text", "Bidirectional")
"""Words behind a family's name: of its text part alone, of one whose tokens see all others."""


def stem(architecture: str) -> tuple[str, str | None]:
    """Return the family that a class's name begins with and the head that its end means (None:
    its name says nothing)."""
    for end in GENERATES:
        if architecture.endswith(end):
            return _family(architecture, end), LOGITS
    for end, head in _POOLS.items():
        if architecture.endswith(end) and architecture != end:
            return _family(architecture, end), head
    return architecture, None


def _family(architecture: str, end: str) -> str:
    """Return what a class's name begins with, without words for a variant of its family."""
    name = architecture.removesuffix(end)
    for word in _VARIANTS:
        name = name.removesuffix(word)
    return name


def registered(architecture: str, wanted: str | None = None) -> str | None:
    """Return the name of the model plugin that runs a class: its own, or its family's. `wanted` is
    the head that it gets, where that is not what its name says.

    A family's decoder serves what pools, unless it has an encoder beside it, which then does.
    An encoder generates nothing.
    """
    names = set(registry.names("model"))
    family, named = stem(architecture)
    head = named if wanted is None else wanted
    ends = () if head == LOGITS else ("ForCausalLM", "LMHeadModel", "Model", "EncoderModel")
    beside = (family + "EncoderModel",) if head != LOGITS and named == LOGITS else ()
    tried = (*beside, architecture, *(family + end for end in ends))
    return next((name for name in tried if name in names), None)
