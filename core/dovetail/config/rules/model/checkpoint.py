"""The model's checkpoint: its names, hub and folder, and the facts in its files."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec

from dovetail import registry
from dovetail.config.checkpoint.dtypes import chosen_dtypes, tell_dtypes
from dovetail.config.checkpoint.generation import default_sampling
from dovetail.config.checkpoint.hf import load_model_facts
from dovetail.config.checkpoint.rope import rope_rules, with_rope
from dovetail.config.checkpoint.sources.hub import Hub
from dovetail.config.checkpoint.sources.model_path import DEMO_NAME, find_config, find_model
from dovetail.config.checkpoint.sources.weights_check import check_weights, has_weights, no_weights
from dovetail.config.rules.model.checkpoint_code import model_code
from dovetail.config.rules.parallel.engines import engine_numbers
from dovetail.config.sections.load import LoadConfig
from dovetail.config.sections.model import ModelConfig
from dovetail.config.sections.parallel import ParallelConfig
from dovetail.interfaces.data.spec import ModelSpec, RunSpec
from dovetail.interfaces.load_format import Checkpoint
from dovetail.interfaces.platform import AUTO_DTYPE, Platform


def served_names(model_config: ModelConfig) -> tuple[str, ...]:
    """Return the model names that requests may use; the first one is reported."""
    return model_config.served_model_name or (model_config.model or DEMO_NAME,)


def hub_of(model_config: ModelConfig, load: LoadConfig) -> Hub:
    """Return the hub that models are fetched from, with its cache folder."""
    return Hub(
        cache=load.download_dir, token=model_config.hf_token, is_modelscope=load.use_modelscope
    )


def model_folder(model_config: ModelConfig, load: LoadConfig, parallel: ParallelConfig) -> Path:
    """Return the model's folder, fetched if it is missing. Raises: ConfigError"""
    return find_model(
        model_config.model,
        revision=model_config.revision,
        hub=hub_of(model_config, load),
        needs_weights=load.load_format != "dummy" and bool(engine_numbers(parallel)),
        every_format=load.load_format not in ("auto", "hf", "safetensors"),
        model_dirs=load.model_dir,
    )


def model_spec(
    model_config: ModelConfig, load: LoadConfig, folder: Path, platform: Platform
) -> ModelSpec:
    """Return the checkpoint's facts with the dtypes decided."""
    asked_path = model_config.hf_config_path
    model = load_model_facts(
        folder,
        overrides=model_config.hf_overrides,
        config_path=find_config(asked_path, hub=hub_of(model_config, load)) if asked_path else None,
        config_format=model_config.config_format,
        mmproj=load.mmproj,
    )
    rope = with_rope(model.hf_config, model_config.rope_theta, model_config.rope_scaling)
    requested = registry.admin.value_of("dtype", model_config.dtype) or AUTO_DTYPE
    computed, weight_dtype = chosen_dtypes(requested, model.hf_config, platform)
    found = msgspec.structs.replace(
        model,
        hf_config=rope,
        rope_rules=rope_rules(rope),
        dtype=computed,
        weight_dtype=weight_dtype,
    )
    if requested == AUTO_DTYPE:
        tell_dtypes(found, platform)
    return found


def with_code(model_config: ModelConfig, load: LoadConfig, model: ModelSpec) -> ModelSpec:
    """Return the model with the code that its checkpoint brings along. Raises: ConfigError"""
    code = model_code(model_config, model, hub_of(model_config, load))
    return model if code is None else msgspec.structs.replace(model, code=code)


def check_files(load: LoadConfig, parallel: ParallelConfig, run: RunSpec) -> None:
    """Check the weight files. For files of an unknown format the load format's own check decides.
    Test models without weights pass if their plugin says so."""
    reader = registry.admin.load_selection(run.load_format)
    if "random_weights" in reader.capabilities or not engine_numbers(parallel):
        return
    if has_weights(run.model.path):
        check_weights(run.model.path, load.ignore_patterns)
        return
    files = Checkpoint(path=run.model.path, ignore_patterns=load.ignore_patterns)
    if not reader.why_not(files):
        return
    if "no_weights" not in registry.admin.load_selection(run.model_plugin).capabilities:
        raise no_weights(run.model.path)


def sampling_of(model_config: ModelConfig, model_path: str) -> dict[str, Any]:
    """Return the sampling settings of requests that give none. Raises: ConfigError"""
    source: str | None = model_config.generation_config
    if source in registry.names("generation_config_source"):
        source = registry.admin.value_of("generation_config_source", source)
    return default_sampling(source, model_path, model_config.override_generation_config)


def load_options(load: LoadConfig, parallel: ParallelConfig) -> dict[str, Any]:
    """Return the options for reading files that every load format gets."""
    return {
        "ignore_patterns": list(load.ignore_patterns),
        "download_dir": load.download_dir,
        "workers": parallel.max_parallel_loading_workers,
        "weight_cache_bytes": load.weight_cache_bytes if load.weight_cache else 0,
    }
