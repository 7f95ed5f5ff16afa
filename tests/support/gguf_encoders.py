"""GGUF files of tiny encoders, written by the gguf package as llama.cpp's converters do it.

Shares nothing with the reader: names, keys and block layouts are the package's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from support.gguf_files import quantized
from support.tiny_encoders import SPECIAL, word_tokenizer

Array = np.ndarray[Any, Any]
Arrays = dict[str, Array]
VOCAB_SIZE = 256
SIZES = {
    "vocab_size": VOCAB_SIZE,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
    "num_labels": 3,
}
POOLING = {"mean": 1, "cls": 2, "last": 3, "rank": 4}
_WITHOUT_PREFIX = ("bert.", "roberta.", "distilbert.", "model.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """An encoder of transformers and its GGUF file. `settings`: keys without the architecture ->
    values; `changed` is what the converter does to the weights by their names; `pooling` the type
    that the file states."""

    architecture: str
    name: str
    model_type: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    settings: Mapping[str, Any] = field(default_factory=dict)
    changed: Callable[[Arrays], Arrays] = lambda weights: weights
    pooling: str = "mean"


def made(case: Case, **more: Any) -> Any:
    """Return transformers' model of a case with random weights."""
    import transformers

    fields = SIZES | dict(case.fields) | more
    config = transformers.AutoConfig.for_model(case.model_type, **fields)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(3)
        model = getattr(transformers, case.name)(config).eval()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn(parameter.shape) * 0.2)
    return model


def write(
    case: Case,
    model: Any,
    file: Path,
    *,
    type_name: str = "F32",
    extra: Mapping[str, Array] | None = None,
    more: Mapping[str, Any] | None = None,
) -> Arrays:
    """Write a model's GGUF file; return the weights that it means by their names in the model.

    `more` are further settings, `extra` further tensors.
    """
    import gguf

    weights = {name: value.float().numpy() for name, value in model.state_dict().items()}
    writer = gguf.GGUFWriter(file, case.architecture)
    config = model.config
    settings = {
        "block_count": config.num_hidden_layers,
        "context_length": config.max_position_embeddings,
        "embedding_length": config.hidden_size,
        "feed_forward_length": config.intermediate_size,
        "attention.head_count": config.num_attention_heads,
        "attention.layer_norm_epsilon": float(getattr(config, "layer_norm_eps", 1e-12)),
        "attention.causal": False,
        "pooling_type": POOLING.get(case.pooling),
        **case.settings,
        **(more or {}),
    }
    for key, value in settings.items():
        is_whole = key.startswith("tokenizer.")
        add_setting(writer, key if is_whole else f"{case.architecture}.{key}", value)
    if "tokenizer.ggml.model" not in settings:
        add_word_pieces(writer)
    kind = next(k for k, name in gguf.MODEL_ARCH_NAMES.items() if name == case.architecture)
    names = gguf.get_tensor_name_map(kind, config.num_hidden_layers)
    meant = {}
    for name, values in case.changed(shortened(weights)).items():
        ours = names.get_name(name, try_suffixes=(".weight", ".bias"))
        assert ours is not None, name
        meant[name] = add_tensor(writer, ours, values, type_name)
    for name, values in (extra or {}).items():
        writer.add_tensor(name, values)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return meant


def shortened(weights: Arrays) -> Arrays:
    """Return weights by the names that the converters map, without those that they leave out."""
    found = {}
    for name, values in weights.items():
        for prefix in _WITHOUT_PREFIX:
            name = name.removeprefix(prefix)
        if "pooler.dense" not in name and "position_ids" not in name:
            found[name] = values
    return found


def add_setting(writer: Any, key: str, value: Any) -> None:
    """Add a setting by the type of its value; None: nothing."""
    adders = {bool: "bool", int: "uint32", float: "float32", str: "string"}
    if isinstance(value, (list, bytes)):
        writer.add_array(key, value)
    elif value is not None:
        getattr(writer, f"add_{adders[type(value)]}")(key, value)


def add_tensor(writer: Any, name: str, values: Array, type_name: str) -> Array:
    """Add a tensor, quantized if it is a large matrix; return what it means."""
    import gguf

    is_matrix = values.ndim == 2 and ".weight" in name and "types" not in name
    values = np.ascontiguousarray(values, dtype=np.float32)
    if type_name == "F32" or not is_matrix or "norm" in name or "position" in name:
        writer.add_tensor(name, values)
        return values
    stored, floats = quantized(values, type_name)
    writer.add_tensor(name, stored, raw_dtype=gguf.GGMLQuantizationType[type_name])
    return floats


def add_word_pieces(writer: Any) -> None:
    """Add the word tokenizer's vocabulary, in which a mark begins words."""
    backend = word_tokenizer()
    tokens = [str(backend.id_to_token(i)) for i in range(backend.get_vocab_size())]
    kinds = [3 if token in SPECIAL else 1 for token in tokens]
    writer.add_tokenizer_model("bert")
    writer.add_token_list([_marked(*pair) for pair in zip(tokens, kinds, strict=True)])
    writer.add_token_types(kinds)
    for name, token in (("bos", "[CLS]"), ("eos", "[SEP]"), ("sep", "[SEP]"), ("pad", "[PAD]")):
        getattr(writer, f"add_{name}_token_id")(tokens.index(token))
    writer.add_token_type_count(2)


def _marked(token: str, kind: int) -> str:
    if kind == 3:
        return token
    return token[2:] if token.startswith("##") else f"\u2581{token}"
