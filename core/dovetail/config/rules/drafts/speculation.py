"""Speculative decoding: --speculative-config becomes a DraftSpec and an acceptance."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail import registry
from dovetail.config.checkpoint.formats import read_settings
from dovetail.config.checkpoint.sources.model_path import DEMO_PATH, find_model
from dovetail.config.config import Config
from dovetail.config.rules.drafts.keys import (
    ACCEPTANCE,
    FLAG,
    DraftCheckpoint,
    DraftKeys,
    draft_keys,
    tell_unused,
)
from dovetail.config.rules.drafts.methods import (
    ASSISTANT,
    HEADS_OF_TARGET,
    LOOKUP,
    LOOKUP_WORDS,
    REFUSED_METHODS,
    SAME_METHODS,
    method_for,
)
from dovetail.config.rules.drafts.worker import Asked, runs_on_worker
from dovetail.config.rules.model.checkpoint import hub_of
from dovetail.config.rules.model.demo import DRAFT_TOKENS, DRAFTS_PAUSE_ABOVE
from dovetail.config.rules.selections import select
from dovetail.config.sections.load import LoadConfig
from dovetail.config.sections.model import ModelConfig
from dovetail.config.sections.parallel import ParallelConfig
from dovetail.config.sections.plugin import PluginConfig
from dovetail.config.sections.speculative import SpeculativeConfig
from dovetail.errors import ConfigError
from dovetail.interfaces.data.schedule_spec import ScheduleSpec
from dovetail.interfaces.data.spec import DraftSpec, ModelSpec, Selection
from dovetail.registry.options import option_types

log = logging.getLogger(__name__)
DEFAULT_DRAFT_TOKENS = 4
DRAFTS_BESIDE_STATES = 16
"""Default limit of requests for drafting with a model that has recurrent states."""
_RANKS = "draft_tensor_parallel_size"


def draft_spec(
    config: Config, model: ModelSpec, schedule: ScheduleSpec, scheduler: Selection
) -> DraftSpec | None:
    """Return the drafter and its draft length, or None without speculation. Raises: ConfigError."""
    tell_unused(config.speculative)
    keys = draft_keys(config.speculative)
    if keys is None:
        return None
    choice = asked_drafter(config.model, config.load, config.speculative, config.plugin)
    assert choice is not None, "there are keys"
    needed = {"drafts"}
    drafter = registry.admin.load_selection(choice.drafter)
    if runs_on_worker(drafter):
        needed.add("worker_drafts")
    if not needed <= registry.admin.load_selection(scheduler).capabilities:
        raise ConfigError(
            f'the scheduler "{scheduler.name}" does not plan drafts.',
            where=FLAG,
            fix="use --scheduler-cls continuous, or leave the flag out.",
        )
    max_tokens = choice.max_tokens
    if max_tokens >= schedule.max_step_tokens:
        raise ConfigError(
            f"{max_tokens} guesses do not fit in a step of {schedule.max_step_tokens} tokens.",
            where=f"{FLAG}.num_speculative_tokens",
            fix=f"use at most {schedule.max_step_tokens - 1}.",
        )
    return DraftSpec(
        drafter=choice.drafter,
        max_tokens=max_tokens,
        takes_predictions="predictions" in drafter.capabilities,
        pause_above_requests=_pause_above(config.model, model, choice, keys),
        max_model_tokens=keys.max_model_len,
    )


def check_states(
    speculative: SpeculativeConfig, parallel: ParallelConfig, model: ModelSpec
) -> None:
    """Raise ConfigError for drafts with recurrent states in a pipeline: its first stages do not
    learn in time which drafts were accepted."""
    num_stages = parallel.pipeline_parallel_size
    if draft_keys(speculative) is None or not _keeps_states(model) or num_stages == 1:
        return
    raise ConfigError(
        "the model keeps states of fixed size, and the first stages of a pipeline do not see in "
        "time which drafts come true.",
        where=FLAG,
        fix="leave the flag out, or use --pipeline-parallel-size 1.",
    )


def _keeps_states(model: ModelSpec) -> bool:
    return model.cache is not None and model.cache.num_state_layers > 0


def _pause_above(
    model_config: ModelConfig, model: ModelSpec, choice: Asked, keys: DraftKeys
) -> int | None:
    """Return the number of requests above which drafting pauses. The demo model's own drafters have
    a default, and so have recurrent states, which need room for one state per draft."""
    if keys.disable_by_batch_size is None and _keeps_states(model):
        return DRAFTS_BESIDE_STATES
    if keys.disable_by_batch_size is None and _is_bundled(model_config, keys, choice.drafter.name):
        return DRAFTS_PAUSE_ABOVE
    return keys.disable_by_batch_size


def _is_bundled(model_config: ModelConfig, keys: DraftKeys, method: str) -> bool:
    """Return whether the drafter is one that comes with the demo model."""
    is_demo = model_config.model in (None, str(DEMO_PATH))
    return is_demo and keys.checkpoint.model is None and method in DRAFT_TOKENS


def _usual_tokens(model_config: ModelConfig, keys: DraftKeys, method: str) -> int:
    """Return the default draft length."""
    if _is_bundled(model_config, keys, method):
        return DRAFT_TOKENS[method]
    return DEFAULT_DRAFT_TOKENS


def asked_drafter(
    model_config: ModelConfig,
    load: LoadConfig,
    speculative: SpeculativeConfig,
    plugins: PluginConfig,
) -> Asked | None:
    """Return the requested drafter, with every key of the flag checked; None without one. Raises:
    ConfigError."""
    keys = draft_keys(speculative)
    if keys is None:
        return None
    method = _method(model_config, load, keys)
    plugin = registry.load("drafter", method, where=f"{FLAG}.method")
    of_checkpoint: dict[str, Any] = {}
    on_worker = runs_on_worker(plugin)
    if on_worker:
        of_checkpoint = keys.checkpoint.given()
        if method == HEADS_OF_TARGET and of_checkpoint.get("model") == model_config.model:
            of_checkpoint.pop("model", None)
        if keys.max_model_len is not None:
            of_checkpoint["max_model_len"] = keys.max_model_len
    options = {} if on_worker else _of_checkpoint(plugin, method, keys.checkpoint)
    return Asked(
        drafter=_drafter(plugins, method, {**options, **keys.options}),
        max_tokens=keys.num_speculative_tokens or _usual_tokens(model_config, keys, method),
        settings=of_checkpoint,
    )


def acceptance_of(speculative: SpeculativeConfig, plugins: PluginConfig) -> Selection | None:
    """Return what accepts drafts, or None without speculation. Raises: ConfigError"""
    keys = draft_keys(speculative)
    if keys is None:
        return None
    name = keys.acceptance_method or registry.admin.own("acceptance", "rejection_sampler")
    where = f"{FLAG}.{ACCEPTANCE}"
    plugin = registry.load("acceptance", name, where=where)
    types = option_types(plugin)
    for key in keys.acceptance_options:
        if key not in types:
            raise ConfigError(
                f'the acceptance "{name}" has no such option.',
                where=f"{FLAG}.{key}",
                fix=f"leave it out, or set {where} to typical_acceptance_sampler.",
            )
    registry.admin.options_for(plugin, keys.acceptance_options, where=FLAG)
    options = {**plugins.options_of("acceptance"), **keys.acceptance_options}
    return select("acceptance", name, where=where, options=options)


def _method(model_config: ModelConfig, load: LoadConfig, keys: DraftKeys) -> str:
    """Return the drafter's name: the given one, or the one for the draft model's checkpoint.
    Raises: ConfigError"""
    model = keys.checkpoint.model
    if keys.method in REFUSED_METHODS and keys.method not in registry.names("drafter"):
        raise ConfigError(
            f'the method "{keys.method}" is not supported: {REFUSED_METHODS[keys.method]}.',
            where=f"{FLAG}.method",
            fix=f"use one of {', '.join(registry.names('drafter'))}.",
        )
    if keys.method is not None:
        is_mtp = keys.method.endswith("_mtp") and keys.method not in registry.names("drafter")
        if not (is_mtp or keys.method == HEADS_OF_TARGET):
            return SAME_METHODS.get(keys.method, keys.method)
        return HEADS_OF_TARGET if model in (None, model_config.model) else ASSISTANT
    if model is None:
        raise ConfigError(
            "no method says who guesses.",
            where=f"{FLAG}.method",
            fix=f"use one of {', '.join(registry.names('drafter'))}.",
        )
    if model in LOOKUP_WORDS:
        return LOOKUP
    folder = draft_folder(model_config, load, keys.checkpoint)
    method = method_for(read_settings(folder), model)
    log.info("%s.method auto: %s, by the config of %s.", FLAG, method, model)
    return method


def draft_folder(model_config: ModelConfig, load: LoadConfig, checkpoint: DraftCheckpoint) -> Path:
    """Return the folder of the draft model, fetched if it is missing. Raises: ConfigError"""
    try:
        return find_model(
            checkpoint.model,
            revision=checkpoint.revision,
            hub=hub_of(model_config, load),
            needs_weights=False,
            model_dirs=load.model_dir,
        )
    except ConfigError as error:
        error.where = f"{FLAG}.model"
        raise


def _drafter(plugins: PluginConfig, method: str, settings: Mapping[str, Any]) -> Selection:
    """Return the drafter with its options. Raises: ConfigError"""
    where = f"{FLAG}.method"
    plugin = registry.load("drafter", method, where=where)
    # Checked here first, so that an error names this flag.
    registry.admin.options_for(plugin, settings, where=FLAG)
    options = {**plugins.options_of("drafter"), **settings}
    return select("drafter", method, where=where, options=options)


def _of_checkpoint(plugin: Any, method: str, checkpoint: DraftCheckpoint) -> dict[str, Any]:
    """Return the keys about a draft model that the drafter takes. Raises: ConfigError for others"""
    types = option_types(plugin)
    taken = {}
    for key, value in checkpoint.given().items():
        if key in types:
            taken[key] = value
        elif key == _RANKS:
            log.info('%s.%s has no effect: the drafter "%s" has no model.', FLAG, key, method)
        elif key != "model" or value not in LOOKUP_WORDS:
            raise ConfigError(
                f'the drafter "{method}" has no draft model.',
                where=f"{FLAG}.{key}",
                fix="leave it out, or name another method.",
            )
    return taken
