"""RoBERTa: BERT with positions that begin after the padding's, and its own classification head.

XLM-RoBERTa and CamemBERT are the same with other vocabularies.
Source: Liu et al. 2019.
"""

from __future__ import annotations

from dovetail.interfaces.plugin import Info
from dovetail_plugins.models.bert import OWN_HEAD, BertModel


class RobertaModel(BertModel):
    """RoBERTa, for vectors of prompts, their classes, or classes of their tokens."""

    info = Info(
        summary="RoBERTa, XLM-RoBERTa, CamemBERT", source="https://arxiv.org/abs/1907.11692"
    )
    prefixes = ("roberta.",)
    prompt_head = OWN_HEAD
    word_head = (
        ("lm_head.dense.", "head.dense."),
        ("lm_head.layer_norm.", "head.norm."),
        ("lm_head.bias", "head.bias"),
    )
