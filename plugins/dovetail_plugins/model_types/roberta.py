"""Facts of RoBERTa and the families with its code."""

from __future__ import annotations

import dataclasses

from dovetail.interfaces.plugin import Value
from dovetail_plugins.model_types import bert

LATER = dataclasses.replace(
    bert.FACTS, counts_from="pad_token_id", defaults={**bert.FACTS.defaults, "pad_token_id": 1}
)
FACTS = dataclasses.replace(LATER, defaults={**LATER.defaults, "vocab_size": 50265})

ROBERTA = Value(summary="RoBERTa", value=FACTS)
XLM_ROBERTA = Value(summary="XLM-RoBERTa", value=LATER)
CAMEMBERT = Value(summary="CamemBERT", value=LATER)
