"""Random BERT checkpoints of a few kB with a word tokenizer, and what stands around them in the
layout of sentence-transformers."""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
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


def write_tiny_bert(
    folder: Path, *, num_classes: int = 0, of: str = "Sequence", **fields: Any
) -> Path:
    """Write a random BERT, with a head for classes where there are some (`of` "Sequence" or
    "Token"); return the folder."""
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
    made = getattr(transformers, f"BertFor{of}Classification" if num_classes else "BertModel")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(7)
        model = made(config)
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape) * 0.1)
    model.save_pretrained(folder)
    return write_word_tokenizer(folder)


def write_sentence_settings(
    folder: Path,
    *,
    pooling: str = "mean_tokens",
    dense: int = 0,
    is_normalized: bool = True,
    max_tokens: int | None = None,
    **settings: Any,
) -> Path:
    """Write what sentence-transformers saves beside a model; return the folder. `dense` is the
    number of a last layer's outputs, `settings` go into config_sentence_transformers.json."""
    modules = ["Transformer", "Pooling", *(["Dense"] if dense else [])]
    modules += ["Normalize"] if is_normalized else []
    listed = [
        {
            "idx": at,
            "name": str(at),
            "path": f"{at}_{name}" if at else "",
            "type": f"sentence_transformers.models.{name}",
        }
        for at, name in enumerate(modules)
    ]
    _write(folder / "modules.json", listed)
    _write(folder / "sentence_bert_config.json", {"max_seq_length": max_tokens})
    _write(folder / "config_sentence_transformers.json", settings)
    modes = ("cls_token", "mean_tokens", "max_tokens", "mean_sqrt_len_tokens")
    pooled = {f"pooling_mode_{mode}": mode == pooling for mode in modes}
    _write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 32, **pooled})
    if dense:
        _write_dense(folder / "2_Dense", dense)
    return folder


def _write_dense(folder: Path, size: int) -> None:
    _write(
        folder / "config.json",
        {
            "in_features": 32,
            "out_features": size,
            "bias": True,
            "activation_function": "torch.nn.modules.activation.Tanh",
        },
    )
    generator = torch.Generator().manual_seed(3)
    weights = {
        "linear.weight": torch.randn(size, 32, generator=generator) * 0.3,
        "linear.bias": torch.randn(size, generator=generator) * 0.3,
    }
    save_file(weights, folder / "model.safetensors")


def _write(file: Path, content: Any) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(content), encoding="utf-8")


def mixed_texts(count: int, *, most_words: int) -> list[str]:
    """Return texts of known words, of 1 to `most_words` of them."""
    chance = random.Random(count)
    return [" ".join(chance.choices(WORDS, k=chance.randint(1, most_words))) for _ in range(count)]
