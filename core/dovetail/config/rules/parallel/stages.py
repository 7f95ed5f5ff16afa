"""Pipeline stages: the number of layers in each, and whether all plugins support stages."""

from __future__ import annotations

from collections import Counter
from typing import cast

import msgspec

from dovetail import registry
from dovetail.config.sections.parallel import ParallelConfig
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec, RankSpec, Selection
from dovetail.interfaces.model import Model

FLAG, SPLIT = "--pipeline-parallel-size", "--pipeline-layer-split"
MODEL_WORD, TENSOR_WORD = "pipeline_parallel", "tensor_parallel"
"""Capabilities of a model: it can be divided into stages, and each layer over ranks."""
WORDS = {"scheduler": "pipeline", "executor": "stages", "worker": "stages"}
"""The corresponding capability of other plugins, by kind."""
SLIDING, FULL = "sliding_attention", "full_attention"


def staged(rank: RankSpec, parallel: ParallelConfig, model: ModelSpec) -> RankSpec:
    """Return the rank with the number of layers of each stage. Raises: ConfigError"""
    text, size = parallel.pipeline_layer_split, rank.num_stages
    if text is not None:
        return msgspec.structs.replace(rank, stage_layers=_split(text, size, model.num_layers))
    if size == 1:
        return rank
    if size > model.num_layers:
        raise ConfigError(
            f"{model.num_layers} layers cannot be divided over {size} stages.",
            where=FLAG,
            fix=f"use at most {model.num_layers}.",
        )
    return msgspec.structs.replace(rank, stage_layers=even_split(model.num_layers, size))


def even_split(num_layers: int, num_stages: int) -> tuple[int, ...]:
    """Return the layers of each stage. The first ones get the remainder, since the last also has
    the head."""
    each, over = divmod(num_layers, num_stages)
    return tuple(each + (stage < over) for stage in range(num_stages))


def _split(text: str, num_stages: int, num_layers: int) -> tuple[int, ...]:
    """Return the split given as text. Raises: ConfigError"""
    words = text.replace(" ", "").split(",")
    counts = tuple(int(word) if word.isdecimal() and len(word) < 7 else 0 for word in words)
    usual = ",".join(map(str, even_split(num_layers, min(num_stages, num_layers))))
    if min(counts) < 1:
        what = f"{text!r} is not a list of numbers of layers, each 1 or more."
    elif len(counts) != num_stages:
        what = f"{text} are the layers of {len(counts)} stages, and there are {num_stages}."
    elif sum(counts) != num_layers:
        what = f"{text} are {sum(counts)} layers, and the model has {num_layers}."
    else:
        return counts
    raise ConfigError(what, where=SPLIT, fix=f"write it like {usual}, or leave it out.")


def check_model(plugin: Selection, rank: RankSpec) -> None:
    """Raise ConfigError for a model that cannot be divided into stages."""
    if rank.num_stages == 1:
        return
    model = cast(type[Model], registry.admin.load_selection(plugin))
    if MODEL_WORD not in model.capabilities:
        instead = f"an architecture whose plugin claims {MODEL_WORD}"
        if TENSOR_WORD in model.capabilities:
            instead = "divide each layer with --tensor-parallel-size"
        raise ConfigError(
            f"the model plugin {plugin.name} cannot be divided into stages: {model.whole_because}.",
            where=FLAG,
            fix=f"use 1, or {instead}.",
        )


def check_sources(model: ModelSpec, rank: RankSpec) -> None:
    """Raise ConfigError if a layer reads the keys and values of a layer on another stage."""
    sources = () if model.cache is None else model.cache.sources
    for stage in range(rank.num_stages if sources else 0):
        own = msgspec.structs.replace(rank, stage=stage).layers(model.num_layers)
        apart = [layer for layer in own if sources[layer] not in own]
        if apart:
            raise ConfigError(
                f"layer {apart[0]} reads the keys and values of layer {sources[apart[0]]}, which "
                "is on another stage.",
                where=FLAG,
                fix=f"use 1, or end a stage before layer {min(sources[i] for i in apart)} or "
                f"earlier with {SPLIT}.",
            )


def check_parts(rank: RankSpec, *plugins: Selection) -> None:
    """Raise ConfigError for a scheduler, executor or worker that does not support stages."""
    for plugin in plugins if rank.num_stages > 1 else ():
        word = WORDS[plugin.kind]
        if word not in registry.admin.load_selection(plugin).capabilities:
            raise ConfigError(
                f"the {plugin.kind} {plugin.name} does not work with several stages.",
                where=FLAG,
                fix=f"use 1, or a {plugin.kind} that claims {word}.",
            )


def largest_stage(model: ModelSpec, rank: RankSpec) -> ModelSpec:
    """Return the model as a stage's KV cache sees it: for each type of attention, the maximum
    number of layers in any stage."""
    if rank.num_stages == 1:
        return model
    kinds, num_layers, cache = _kinds(model), model.num_layers, model.cache
    keepers = range(num_layers) if cache is None or not cache.sources else cache.keepers
    layer_counts: Counter[str] = Counter()
    for stage in range(rank.num_stages):
        own = msgspec.structs.replace(rank, stage=stage).layers(num_layers)
        layer_counts |= Counter(kinds[number] for number in own if number in keepers)
    config = {**model.hf_config, "layer_types": list(layer_counts.elements())}
    if cache is not None and cache.sources:
        cache = msgspec.structs.replace(cache, sources=tuple(range(layer_counts.total())))
    return msgspec.structs.replace(
        model, num_layers=layer_counts.total(), hf_config=config, cache=cache
    )


def _kinds(model: ModelSpec) -> list[str]:
    """Return each layer's type of attention; full if config.json does not say."""
    kinds, pattern = (model.hf_config.get(k) for k in ("layer_types", "sliding_window_pattern"))
    if isinstance(kinds, list) and len(kinds) == model.num_layers:
        return [str(kind) for kind in kinds]
    if isinstance(pattern, int) and pattern > 0:
        return [SLIDING if (i + 1) % pattern else FULL for i in range(model.num_layers)]
    return [FULL] * model.num_layers
