"""Random BERT checkpoints of a few kB with a word tokenizer, and what stands around them in the
layout of sentence-transformers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, processors

WORDS = """
    the a dog cat mouse house tree river mountain runs sleeps eats sees finds brown quick lazy
    small old new where what is in on under over and not of to how many people live
""".split()  # noqa: SIM905
SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "<s>", "</s>"]


def word_tokenizer(post: str = "bert") -> Tokenizer:
    """Return a tokenizer of words and single letters; `post` is whose pairs it makes."""
    letters = [chr(code) for code in range(33, 127) if not chr(code).isupper()]
    vocab = [*SPECIAL, *WORDS, *letters, *("##" + letter for letter in letters)]
    ids = {token: at for at, token in enumerate(dict.fromkeys(vocab))}
    tokenizer = Tokenizer(models.WordPiece(ids, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.add_special_tokens(SPECIAL)
    cls, sep = ("[CLS]", ids["[CLS]"]), ("[SEP]", ids["[SEP]"])
    if post == "bert":
        tokenizer.post_processor = processors.TemplateProcessing(
            single="[CLS] $A [SEP]", pair="[CLS] $A [SEP] $B:1 [SEP]:1", special_tokens=[cls, sep]
        )
    elif post == "bert_processing":
        tokenizer.post_processor = processors.BertProcessing(sep, cls)
    elif post == "roberta":
        start, end = ("<s>", ids["<s>"]), ("</s>", ids["</s>"])
        tokenizer.post_processor = processors.RobertaProcessing(end, start)
    return tokenizer


def write_word_tokenizer(folder: Path, post: str = "bert", **settings: Any) -> Path:
    """Write the word tokenizer's files; return the folder."""
    folder.mkdir(parents=True, exist_ok=True)
    word_tokenizer(post).save(str(folder / "tokenizer.json"))
    named = {"cls_token": "[CLS]", "sep_token": "[SEP]", "pad_token": "[PAD]", "unk_token": "[UNK]"}
    usual = {"tokenizer_class": "BertTokenizer", "model_max_length": 128}
    content = {**usual, **named, **settings}
    (folder / "tokenizer_config.json").write_text(json.dumps(content), encoding="utf-8")
    return folder


def write_tiny_bert(folder: Path, *, num_classes: int = 0, **fields: Any) -> Path:
    """Write a random BERT, with a head for classes where there are some; return the folder."""
    import transformers

    config = transformers.BertConfig(
        **{
            "vocab_size": word_tokenizer().get_vocab_size(),
            "hidden_size": 32,
            "intermediate_size": 48,
            "num_hidden_layers": 2,
            "num_attention_heads": 4,
            "max_position_embeddings": 128,
            "pad_token_id": 0,
            **({"num_labels": num_classes} if num_classes else {}),
            **fields,
        }
    )
    made = transformers.BertForSequenceClassification if num_classes else transformers.BertModel
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = made(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape) * 0.1)
    model.save_pretrained(folder)
    return write_word_tokenizer(folder)
