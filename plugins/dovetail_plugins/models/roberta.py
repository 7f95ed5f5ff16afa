"""RoBERTa: BERT whose positions begin behind the padding's, with classes of its own head.

XLM-RoBERTa and CamemBERT are the same with other vocabularies.
Source: Liu et al. 2019.
"""

from __future__ import annotations

from dovetail.interfaces.model import WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.class_head import DenseClasses
from dovetail_plugins.models.bert import FUSED, RENAMES, BertModel


class RobertaModel(BertModel):
    """RoBERTa, for vectors of prompts, their classes, or classes of their tokens."""

    info = Info(
        summary="RoBERTa, XLM-RoBERTa, CamemBERT", source="https://arxiv.org/abs/1907.11692"
    )

    def weight_map(self) -> WeightMap:
        """Return the names; checkpoints of whole models begin with "roberta."."""
        to_head: tuple[tuple[str, str], ...] = (("classifier.", "head."),)
        if isinstance(self.head, DenseClasses):
            to_head = (("classifier.out_proj.", "head.out."), ("classifier.dense.", "head.dense."))
        unused = ("lm_head.", "embeddings.position_ids", "pooler.")
        return WeightMap(
            prefixes=(("roberta.", ""),),
            renames=(*RENAMES, *to_head),
            fused=FUSED,
            ignored=unused if self.head is not None else (*unused, "classifier."),
        )
