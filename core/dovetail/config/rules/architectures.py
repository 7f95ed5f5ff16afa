"""What the name of a checkpoint's class says: its family, and what stands on its hidden states."""

from __future__ import annotations

from dovetail import registry

GENERATES = ("ForCausalLM", "LMHeadModel", "ForConditionalGeneration")
"""Ends of the names of classes that generate."""
LOGITS, NOTHING, CLASSES, TOKEN_CLASSES = "logits", "", "classes", "token_classes"
_POOLS = {
    "ForSequenceClassification": CLASSES,
    "ForTokenClassification": TOKEN_CLASSES,
    "ForProcessRewardModel": TOKEN_CLASSES,
    "ForRewardModel": TOKEN_CLASSES,
    "ForMaskedLM": NOTHING,
    "EncoderModel": NOTHING,
    "Model": NOTHING,
}
"""Ends of the names of classes that do not generate -> what stands on their hidden states."""


def stem(architecture: str) -> tuple[str, str | None]:
    """Return the family that a class's name begins with and the head that its end means (None:
    its name says nothing)."""
    for end in GENERATES:
        if architecture.endswith(end):
            return architecture.removesuffix(end), LOGITS
    for end, head in _POOLS.items():
        if architecture.endswith(end) and architecture != end:
            return architecture.removesuffix(end), head
    return architecture, None


def registered(architecture: str) -> str | None:
    """Return the name of the model plugin that runs a class: its own, or its family's.

    A family's decoder serves what pools; its encoder generates nothing.
    """
    names = set(registry.names("model"))
    family, head = stem(architecture)
    ends = ("ForCausalLM", "LMHeadModel")
    encoders = () if head == LOGITS else ("Model", "EncoderModel")
    tried = (architecture, *(family + end for end in (*ends, *encoders)))
    return next((name for name in tried if name in names), None)
