"""Drafters on the worker: their checkpoint, and whether it fits the model.

Reads the keys of --speculative-config about the drafter's checkpoint and its loading. Imports no
torch; knows no drafter by name.
"""

from __future__ import annotations

import filecmp
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import msgspec

from dovetail import registry
from dovetail.config.checkpoint.context_length import checkpoint_tokens
from dovetail.config.checkpoint.dtypes import BYTES, chosen_dtypes
from dovetail.config.checkpoint.formats import read_settings
from dovetail.config.checkpoint.hf import load_model_facts
from dovetail.config.checkpoint.json_files import read_json
from dovetail.config.checkpoint.rope import rope_rules, with_rope
from dovetail.config.checkpoint.sources.hub import Hub
from dovetail.config.checkpoint.sources.model_path import find_model
from dovetail.config.config import Config
from dovetail.config.rules import selections
from dovetail.config.rules.model.architectures import registered
from dovetail.config.rules.model.demo import bundled_drafts, with_bundled_draft
from dovetail.config.rules.parallel.ranks import check_division, rank_spec
from dovetail.config.rules.steps.attention import select_attention
from dovetail.config.sections.load import LoadConfig
from dovetail.config.sections.model import ModelConfig
from dovetail.config.sections.parallel import ParallelConfig
from dovetail.errors import ConfigError
from dovetail.interfaces.data.schedule_spec import ScheduleSpec
from dovetail.interfaces.data.spec import ModelSpec, Selection, WorkerDraftSpec
from dovetail.interfaces.data.step import KVLayer
from dovetail.interfaces.drafter import WorkerDrafter
from dovetail.interfaces.platform import AUTO_DTYPE, Platform
from dovetail.registry.options import convert

FLAG = "--speculative-config"
SAMPLE_METHODS = ("greedy", "probabilistic")


@dataclass(frozen=True, slots=True, kw_only=True)
class Asked:
    """A requested drafter, with the other settings of the flag."""

    drafter: Selection
    max_tokens: int
    settings: Mapping[str, Any]


def runs_on_worker(plugin: type[Any]) -> bool:
    """Return whether a drafter plugin runs on the worker."""
    return issubclass(plugin, WorkerDrafter)


def worker_drafts(
    config: Config,
    choice: Asked,
    target: ModelSpec,
    schedule: ScheduleSpec,
    kv_dtype: str,
    platform: Platform,
    hub: Hub,
) -> WorkerDraftSpec:
    """Return the drafter and its checkpoint. Raises: ConfigError naming the key at fault."""
    plugin = registry.admin.load_selection(choice.drafter)
    settings = choice.settings
    _check_place(config.parallel)
    if "own_weights" not in plugin.capabilities:
        where = target.path, platform.device_type
        settings = with_bundled_draft(settings, choice.drafter.name, *where)
    model = _model(config.model, config.load, plugin, settings, target, platform, hub)
    _check_fit(plugin, model, target)
    if "own_weights" in plugin.capabilities:
        media, plugins = config.multimodal, config.plugin
        model_plugin: Selection | None = selections.select_model(
            config.model, media, plugins, target
        )
    else:
        model_plugin = _model_plugin(plugin, model)
    is_divided = _is_divided(config.parallel, settings, plugin)
    if is_divided and model_plugin is not None:
        check_division(model, model_plugin, rank_spec(config.parallel))
    return WorkerDraftSpec(
        drafter=choice.drafter,
        max_tokens=choice.max_tokens,
        model=model,
        model_plugin=model_plugin,
        load_format=selections.select_load_format(
            _load_flags(config.load, plugin), config.plugin, config.origins, model.path
        ),
        quantization=selections.quantization_of(
            model, settings.get("quantization"), {}, where=f"{FLAG}.quantization"
        ),
        attention=select_attention(config, model, kv_dtype, platform),
        max_model_tokens=_longest(settings, plugin, model, schedule),
        is_divided=is_divided,
        is_sampled=_is_sampled(settings),
    )


def draft_bytes(drafts: WorkerDraftSpec | None, kv_dtype: str, tensor_size: int) -> int:
    """Return the bytes that a drafter's layers cache per token on each rank."""
    if drafts is None:
        return 0
    model = drafts.model
    plugin = registry.admin.load_selection(drafts.drafter)
    heads = max(1, model.num_kv_heads // (tensor_size if drafts.is_divided else 1))
    layer = KVLayer(name="", num_kv_heads=heads, head_size=model.head_size, dtype=kv_dtype)
    per_layer = layer.bytes_per_token(BYTES[kv_dtype])
    num_layers: int = plugin.num_cached_layers(model)
    return num_layers * per_layer


def _model_plugin(plugin: type[WorkerDrafter], model: ModelSpec) -> Selection | None:
    """Return the model plugin for the class in a drafter's settings, if they name one. Raises:
    UnknownPlugin for a whole model of an unknown class"""
    name = registered(model.architecture)
    if name is None and "whole_model" not in plugin.capabilities:
        return None
    where = f"{FLAG}.model: its architectures"
    return selections.select("model", name or model.architecture, where=where)


def _check_place(parallel: ParallelConfig) -> None:
    """Raise ConfigError for engines in which no rank sees a whole step."""
    for size, flag in (
        (parallel.pipeline_parallel_size, "--pipeline-parallel-size"),
        (parallel.decode_context_parallel_size, "--decode-context-parallel-size"),
    ):
        if size > 1:
            raise ConfigError(
                f"a drafter beside the model cannot be combined with {flag} {size}.",
                where=f"{FLAG}.method",
                fix=f"set {flag} 1, or use a drafter that knows token ids alone, such as ngram.",
            )


def _model(
    model_config: ModelConfig,
    load: LoadConfig,
    plugin: type[WorkerDrafter],
    settings: Mapping[str, Any],
    target: ModelSpec,
    platform: Platform,
    hub: Hub,
) -> ModelSpec:
    """Return the facts of the drafter's checkpoint. Raises: ConfigError"""
    folder = _folder(load, plugin, settings, target, hub)
    raw = read_settings(folder)
    if "own_weights" in plugin.capabilities:  # includes changes by flags
        raw = {**raw, **target.hf_config}
    found = load_model_facts(folder, overrides=plugin.settings(raw, target))
    requested = registry.admin.value_of("dtype", model_config.dtype) or AUTO_DTYPE
    _, weight_dtype = chosen_dtypes(requested, found.hf_config, platform)
    rope = with_rope(found.hf_config, None, {})
    return msgspec.structs.replace(
        found,
        hf_config=rope,
        rope_rules=rope_rules(rope),
        dtype=target.dtype,
        weight_dtype=weight_dtype,
    )


def _folder(
    load: LoadConfig,
    plugin: type[WorkerDrafter],
    settings: Mapping[str, Any],
    target: ModelSpec,
    hub: Hub,
) -> Path:
    """Return the folder of the drafter's checkpoint. Raises: ConfigError"""
    where, name = f"{FLAG}.model", settings.get("model")
    if "own_weights" in plugin.capabilities:
        if name is not None:
            raise ConfigError(
                "this drafter's weights are part of the model's own checkpoint.",
                where=where,
                fix="leave the key out.",
            )
        return Path(target.path)
    if not isinstance(name, str) or not name:
        raise ConfigError(
            "the drafter has its own checkpoint, and none is named; only the bundled demo model "
            f"brings drafters along ({', '.join(bundled_drafts())})."
            if name is None
            else f"{name!r} is not the name of a model.",
            where=where,
            fix="give its folder or hub id.",
        )
    revision = settings.get("revision")
    try:
        return find_model(
            name,
            revision=None if revision is None else convert(revision, str, f"{FLAG}.revision"),
            hub=hub,
            needs_weights=load.load_format != "dummy",
            model_dirs=load.model_dir,
        )
    except ConfigError as error:
        named = where if error.where == "--model" else error.where
        raise ConfigError(error.what, where=named, fix=error.fix) from error


def _check_fit(plugin: type[WorkerDrafter], model: ModelSpec, target: ModelSpec) -> None:
    """Raise ConfigError unless the drafter's vocabulary and hidden size fit the model's."""
    if model.vocab_size != target.vocab_size:
        raise ConfigError(
            f"the drafter has a vocabulary of {model.vocab_size} tokens, and the model one of "
            f"{target.vocab_size}.",
            where=f"{FLAG}.model",
            fix="use a drafter that was made for this model.",
        )
    if "whole_model" in plugin.capabilities:
        _check_tokens(Path(model.path), Path(target.path))
    size = int(model.hf_config.get("backbone_hidden_size") or model.hidden_size)
    if "hidden_states" in plugin.capabilities and size != target.hidden_size:
        raise ConfigError(
            f"the drafter continues hidden states of {size} numbers, and the model's "
            f"have {target.hidden_size}.",
            where=f"{FLAG}.model",
            fix="use a drafter that was made for this model.",
        )


def _check_tokens(draft: Path, target: Path) -> None:
    """Raise ConfigError if both have a tokenizer.json and an id means another token in it."""
    files = draft / "tokenizer.json", target / "tokenizer.json"
    if not all(file.is_file() for file in files) or filecmp.cmp(*files, shallow=False):
        return
    ours, theirs = (read_json(file).get("model", {}).get("vocab") for file in files)
    if not isinstance(ours, dict) or not isinstance(theirs, dict):
        return  # pieces with scores: only their number is compared
    differing = next((token for token, number in theirs.items() if ours.get(token) != number), None)
    if differing is not None:
        raise ConfigError(
            f"the token {differing!r} is {theirs[differing]} to the model and "
            f"{ours.get(differing)} to the drafter.",
            where=f"{FLAG}.model",
            fix="use a drafter with the model's own tokenizer.",
        )


def _is_divided(
    parallel: ParallelConfig, settings: Mapping[str, Any], plugin: type[WorkerDrafter]
) -> bool:
    """Return whether the drafter is divided over the model's ranks. Raises: ConfigError"""
    size = parallel.tensor_parallel_size
    key = "draft_tensor_parallel_size"
    value = settings.get(key)
    if value is None:
        return size > 1
    number: int = convert(value, int, f"{FLAG}.{key}")
    if number not in (1, size):
        raise ConfigError(
            f"the drafter is whole on every rank (1) or divided as the model is ({size}), "
            f"not over {number}.",
            where=f"{FLAG}.{key}",
            fix=f"use 1 or {size}." if size > 1 else "use 1.",
        )
    return number > 1


def _is_sampled(settings: Mapping[str, Any]) -> bool:
    """Return whether drafts are sampled instead of taking the most likely tokens. Raises:
    ConfigError"""
    method = settings.get("draft_sample_method")
    if method not in (None, *SAMPLE_METHODS):
        raise ConfigError(
            f"{method!r} is not a way to choose a draft.",
            where=f"{FLAG}.draft_sample_method",
            fix=f"use one of {', '.join(SAMPLE_METHODS)}.",
        )
    return bool(method == "probabilistic")


def _load_flags(load: LoadConfig, plugin: type[WorkerDrafter]) -> LoadConfig:
    """Return the flags for the drafter's weights. Load format flags are for the model's own."""
    if "own_weights" in plugin.capabilities or load.load_format == "dummy":
        return load
    return replace(load, load_format="auto", model_loader_extra_config={})


def _longest(
    settings: Mapping[str, Any],
    plugin: type[WorkerDrafter],
    model: ModelSpec,
    schedule: ScheduleSpec,
) -> int:
    """Return the maximum number of tokens of a row that is drafted. Raises: ConfigError"""
    key = f"{FLAG}.max_model_len"
    value = settings.get("max_model_len")
    length: int = schedule.max_model_tokens if value is None else convert(value, int, key)
    if length < 1:
        raise ConfigError(f"{length} is out of range.", where=key, fix="give at least 1.")
    if "whole_model" in plugin.capabilities:  # heads have no limit of their own
        length = min(length, checkpoint_tokens(model))
    return min(length, schedule.max_model_tokens)
