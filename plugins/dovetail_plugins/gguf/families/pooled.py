"""How a GGUF file's model pools its prompts, in config.json's words. Imports no torch.

Source: the key names of the gguf package, and what llama.cpp's converters and graphs make of them
(https://github.com/ggml-org/llama.cpp/blob/master/src/llama-graph.cpp).
"""

from __future__ import annotations

from typing import Any

from dovetail.config.checkpoint.sentence_transformers import PAIR, WHOLE
from dovetail.errors import ConfigError
from dovetail_plugins.gguf.reading.metadata import Settings

CLASSIFIERS = ("cls.output.weight", "cls.weight")
"""The matrix that tells classes: the first of these that a file has."""
DENSE = ("dense_2", "dense_3")
"""Layers behind the pooler, in their order."""
_POOLERS = {0: None, 1: "mean", 2: "cls", 3: "last"}
_RANK = 4
_RERANK = "tokenizer.chat_template.rerank"


def pooled(settings: Settings, architecture: str) -> dict[str, Any]:
    """Return what a file says of pooling, nothing if its model generates or says nothing.
    `architecture` is the class that its other settings mean.

    Raises: ConfigError for a pooling type that is not known, and for a reranker without classes.
    """
    kind = settings.find(".pooling_type", int)
    if kind not in (None, _RANK, *_POOLERS):
        raise ConfigError(
            f"{settings.architecture}.pooling_type is {kind}; "
            f"{', '.join(map(str, (*_POOLERS, _RANK)))} are known.",
            where=str(settings.model.path),
        )
    sees_all = settings.find(".attention.causal", bool) is False
    found: dict[str, Any] = {"is_causal": False} if sees_all else {}
    if tells_classes(settings):
        name = architecture.replace("ForCausalLM", "ForSequenceClassification")
        return {**found, "architectures": [name], **_classes(settings)}
    layers = _projections(settings)
    if kind is None and not layers:
        return found
    sentences = {  # layers without a pooler make a vector of each token
        "pooler": _POOLERS[kind or 0],
        "projections": layers,
        "is_normalized": True,
        "has_modules": True,
    }
    return {**found, WHOLE: sentences}


def tells_classes(settings: Settings) -> bool:
    """Return whether a file's model tells classes of prompts, as a reranker does.

    Raises: ConfigError for a reranker without a matrix of classes.
    """
    kind = settings.find(".pooling_type", int)
    has_classes = any(settings.tensor(name) for name in CLASSIFIERS)
    if kind == _RANK and not has_classes:
        raise ConfigError(
            f"{settings.architecture}.pooling_type says that the model ranks, and the file has no "
            f"tensor {CLASSIFIERS[0]}.",
            where=str(settings.model.path),
            fix="convert the model again with a current llama.cpp.",
        )
    return has_classes and kind in (None, _RANK)


def says_yes(settings: Settings) -> bool:
    """Return whether the classes are the words "yes" and "no", whose difference ranks."""
    return settings.find(".classifier.output_labels", list) == ["yes", "no"]


def _classes(settings: Settings) -> dict[str, Any]:
    """Return the names of the classes, and the text around a pair that is ranked."""
    extent = next(one for one in map(settings.tensor, CLASSIFIERS) if one is not None)
    count = extent.shape[0] if len(extent.shape) > 1 else 1
    labels = settings.find(".classifier.output_labels", list)
    template = settings.find(_RERANK, str)
    pair = {} if template is None else {PAIR: template}
    if says_yes(settings):
        return {"num_labels": 1, **pair}
    if labels is None:
        return {"num_labels": count, **pair}
    if len(labels) != count:
        raise ConfigError(
            f"{settings.architecture}.classifier.output_labels names {len(labels)} classes, and "
            f"{extent.name} has {count}.",
            where=str(settings.model.path),
        )
    return {"id2label": {str(i): str(label) for i, label in enumerate(labels)}, **pair}


def _projections(settings: Settings) -> list[dict[str, Any]]:
    """Return the layers behind the pooler."""
    found = []
    for name in DENSE:
        extent = settings.tensor(f"{name}.weight")
        if extent is not None and len(extent.shape) == 2:
            has_bias = settings.tensor(f"{name}.bias") is not None
            found.append({
                "folder": str(settings.model.path),
                "name": name,
                "in_size": extent.shape[1],
                "out_size": extent.shape[0],
                "has_bias": has_bias,
            })  # fmt: skip
    return found
