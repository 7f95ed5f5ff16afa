"""BERT: learned positions and types, post-norm, classes read from the first token.

Source: Devlin et al. 2018.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import ClassVar

import torch
from torch import nn

from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import CLASSES, WORD_WEIGHTS, ModelSpec
from dovetail.interfaces.model import BuildContext, WeightMap
from dovetail.interfaces.plugin import Info
from dovetail.layers.embedding import VocabParallelEmbedding
from dovetail_plugins.layers.class_head import DenseClasses
from dovetail_plugins.layers.encoder import EncoderConfig, EncoderModel, usual_encoder
from dovetail_plugins.layers.word_weights import WordWeights

log = logging.getLogger(__name__)

Renames = tuple[tuple[str, str], ...]

RENAMES = (
    ("embeddings.word_embeddings.", "embeddings.words."),
    ("embeddings.position_embeddings.", "embeddings.positions."),
    ("embeddings.token_type_embeddings.", "embeddings.types."),
    ("embeddings.LayerNorm.", "embeddings.norm."),
    ("encoder.layer.", "layers."),
    (".attention.self.", ".attention."),
    (".attention.output.dense.", ".attention.o_proj."),
    (".attention.output.LayerNorm.", ".attention_norm."),
    (".intermediate.dense.", ".up_proj."),
    (".output.dense.", ".down_proj."),
    (".output.LayerNorm.", ".output_norm."),
    ("_norm.gamma", "_norm.weight"),
    ("_norm.beta", "_norm.bias"),
    ("s.norm.gamma", "s.norm.weight"),
    ("s.norm.beta", "s.norm.bias"),
)
"""Names of checkpoints -> names of `layers.encoder`, the very old ones of norms too."""
OWN_FUSED = {f"{part}_proj": ("qkv_proj", part) for part in "qkv"}
"""The names here of a layer's three matrices, which GGUF files are read by."""
FUSED = {
    **OWN_FUSED,
    "query": ("qkv_proj", "q"),
    "key": ("qkv_proj", "k"),
    "value": ("qkv_proj", "v"),
}

TOKEN_HEAD: Renames = (("classifier.", "head."),)
OWN_HEAD: Renames = (("classifier.out_proj.", "head.out."), ("classifier.dense.", "head.dense."))
"""Names of a head of prompts that has both of its matrices to itself."""
WORD_HEAD: Renames = (
    ("cls.predictions.transform.dense.", "head.dense."),
    ("cls.predictions.transform.LayerNorm.", "head.norm."),
    ("cls.predictions.bias", "head.bias"),
)
"""Names of a masked language model's head, whose last matrix is the table of words."""
POOLER = "pooler."
UNUSED_TABLES = ("embeddings.position_ids", "inv_freq", "seq_relationship.")
TIED_WORDS = ("predictions.decoder.", "lm_head.decoder.", "vocab_projector.weight")
"""The last matrix of that head, once more."""
UNUSED = (
    *("cls.", "lm_head.", "_predictions.", *UNUSED_TABLES),
    *("dense_2.", "dense_3."),
)
"""Extra tensors of masked language models, tables that are computed, and the layers behind a pooler
that a GGUF file holds."""


class BertModel(EncoderModel):
    """BERT, for vectors of prompts, their classes, or classes of their tokens."""

    info = Info(summary="BERT", source="https://arxiv.org/abs/1810.04805")
    prefixes: ClassVar[tuple[str, ...]] = ("bert.",)
    renames: ClassVar[Renames] = RENAMES
    fused: ClassVar[Mapping[str, tuple[str, str]]] = FUSED
    prompt_head: ClassVar[Renames] = (
        ("pooler.dense.", "head.dense."),
        ("classifier.", "head.out."),
    )

    word_head: ClassVar[Renames] = WORD_HEAD

    @classmethod
    def encoder_config(cls, model: ModelSpec) -> EncoderConfig:
        """Return the usual settings. Raises: ConfigError for positions that are not learned"""
        kind = model.hf_config.get("position_embedding_type")
        if kind not in (None, "absolute"):
            raise ConfigError(
                f'positions by "{kind}" are not supported.',
                where="config.json: position_embedding_type",
                fix="use a checkpoint with learned positions (absolute).",
            )
        return usual_encoder(model)

    def build_head(self, context: BuildContext) -> nn.Module:
        """Return the classifier: of a prompt through the pooler's matrix, of tokens without; or the
        head that weighs words."""
        if context.model.head == WORD_WEIGHTS:
            config, words = self.encoder_config(context.model), self.embeddings.words
            assert isinstance(words, VocabParallelEmbedding)
            return WordWeights(context, words, act=config.hidden_act, norm_eps=config.norm_eps)
        if context.model.head != CLASSES:
            return super().build_head(context)
        if not context.model.hf_config.get("has_no_pooler"):
            return DenseClasses(context)
        log.warning(
            "the file lacks the layer before BERT's classifier, which llama.cpp's converters leave "
            "out: scores are llama.cpp's, not those of the model that the file was made of"
        )
        return super().build_head(context)

    def task_states(
        self, task: str, states: torch.Tensor, token_ids: Sequence[int]
    ) -> torch.Tensor:
        """Return the states, or the weights of words. Shapes: states [n, E] -> [n, E or V]"""
        return self.classes(states) if isinstance(self.head, WordWeights) else states

    def weight_map(self) -> WeightMap:
        """Return the names; in whole models they begin with one of the family's prefixes."""
        to_head = TOKEN_HEAD
        if isinstance(self.head, DenseClasses):
            to_head = self.prompt_head
        if isinstance(self.head, WordWeights):
            to_head = self.word_head
        unused = UNUSED if to_head is not self.word_head else (*TIED_WORDS, *UNUSED_TABLES)
        is_pooled = any(old.startswith(POOLER) for old, _ in to_head)
        return WeightMap(
            prefixes=tuple((prefix, "") for prefix in self.prefixes),
            renames=(*self.renames, *to_head),
            fused=self.fused,
            ignored=(
                *unused,
                *(() if is_pooled else (POOLER,)),
                *(() if self.head is not None else ("classifier.",)),
            ),
        )
