"""Tiny BERTs with random weights and a vocabulary of letters, written with transformers."""

from __future__ import annotations

import json
import string
from pathlib import Path
from typing import Any

WORDS = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *string.ascii_lowercase)
PIECES = tuple(f"##{letter}" for letter in string.ascii_lowercase)
VOCABULARY = (*WORDS, *PIECES, ".", ",", "the", "cat", "sat")
MAX_TOKENS = 128


def write_bert(
    folder: Path, *, labels: int = 0, prompts: dict[str, str] | None = None, broken: str = ""
) -> Any:
    """Write a checkpoint and return its transformers model. `labels`: it tells so many classes;
    `prompts` are those of a folder of sentence-transformers, which pools the first token. The
    embedding of the word `broken` is not a number."""
    import torch
    from transformers import BertConfig, BertForSequenceClassification, BertModel

    folder.mkdir(parents=True, exist_ok=True)
    _write_tokenizer(folder)
    config = BertConfig(
        vocab_size=len(VOCABULARY),
        hidden_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        intermediate_size=96,
        max_position_embeddings=MAX_TOKENS,
        initializer_range=0.2,
    )
    if labels:
        config.num_labels = labels
    torch.manual_seed(0)
    model = BertForSequenceClassification(config) if labels else BertModel(config)
    if broken:
        model.get_input_embeddings().weight.data[VOCABULARY.index(broken)] = torch.nan
    model.eval().save_pretrained(folder)
    if prompts is not None:
        _write_sentence_settings(folder, prompts)
    return model


def _write_tokenizer(folder: Path) -> None:
    """Write BERT's tokenizer with this vocabulary: words in pieces, a pair's texts told apart."""
    from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    ids = {word: at for at, word in enumerate(VOCABULARY)}
    made = Tokenizer(models.WordPiece(ids, unk_token="[UNK]"))
    made.normalizer = normalizers.BertNormalizer()
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    made.decoder = decoders.WordPiece()
    made.post_processor = processors.TemplateProcessing(
        single="[CLS]:0 $A:0 [SEP]:0",
        pair="[CLS]:0 $A:0 [SEP]:0 $B:1 [SEP]:1",
        special_tokens=[(word, ids[word]) for word in ("[CLS]", "[SEP]")],
    )
    names = {f"{name}_token": f"[{name.upper()}]" for name in ("pad", "unk", "cls", "sep", "mask")}
    inputs = ["input_ids", "token_type_ids", "attention_mask"]
    whole = PreTrainedTokenizerFast(tokenizer_object=made, model_input_names=inputs, **names)
    whole.save_pretrained(folder)


def _write_sentence_settings(folder: Path, prompts: dict[str, str]) -> None:
    modules = [
        {"idx": 0, "name": "0", "path": "", "type": "sentence_transformers.models.Transformer"},
        {
            "idx": 1,
            "name": "1",
            "path": "1_Pooling",
            "type": "sentence_transformers.models.Pooling",
        },
        {
            "idx": 2,
            "name": "2",
            "path": "2_Normalize",
            "type": "sentence_transformers.models.Normalize",
        },
    ]
    pooling = {"word_embedding_dimension": 64, "pooling_mode_cls_token": True}
    (folder / "1_Pooling").mkdir()
    (folder / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (folder / "modules.json").write_text(json.dumps(modules))
    (folder / "config_sentence_transformers.json").write_text(json.dumps({"prompts": prompts}))
