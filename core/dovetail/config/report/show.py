"""The resolved configuration as rows: every flag with its final value and its origin.

Combines `Config` (what was requested) and `EngineSpec` (what was decided), flag by flag. The origin
of a value that was not given is `DEFAULT`, `MODEL`, `MACHINE`, `DEMO`, or the variable that another
library reads. Prints nothing.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from dovetail.config.checkpoint.context_length import checkpoint_tokens
from dovetail.config.checkpoint.generation import FIELDS, FILE, MORE_FIELDS
from dovetail.config.config import GROUPS, Config, flags, part_of, shown
from dovetail.config.report.secrets import MASK, masked
from dovetail.config.rules.selections import stored_quantization
from dovetail.config.sections.field import Flag
from dovetail.interfaces.data.sampling_params import SamplingParams
from dovetail.interfaces.data.spec import EngineSpec

DEFAULT = "default"
MODEL = "model"
MACHINE = "machine"
DEMO = "demo model"

SAMPLING = (*FIELDS, *MORE_FIELDS)
"""Sampling fields for which the defaults are shown."""
OVERRIDES = "override_generation_config"
_NEW_TOKENS = {"max_new_tokens": "max_tokens"}
_NO_CHOICE = (None, "", "auto", ())

Found = Mapping[str, tuple[Any, str]]
"""Field -> its final value, and what decided it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Shown:
    """One setting. `is_chosen`: it is not just a flag's default."""

    group: str
    name: str
    value: Any
    origin: str
    is_chosen: bool


def rows_of(config: Config, found: Found) -> list[Shown]:
    """Return every flag in the order of the groups, with secrets masked.

    `found` is `resolved(...)` plus decisions made elsewhere.
    """
    return [_row(config, flag, found) for flag in flags().values()]


def _row(config: Config, flag: Flag, found: Found) -> Shown:
    requested = config.value(flag.name)
    value, origin = found.get(flag.name, (requested, DEFAULT))
    if config.is_given(flag.name) and not _delegates(flag, requested):
        origin = config.origins[flag.name]
    return Shown(
        group=GROUPS[part_of(flag.name)].__name__,
        name=flag.name,
        value=masked(shown(flag, value)),
        origin=origin,
        is_chosen=origin != DEFAULT or value != flag.default,
    )


def _delegates(flag: Flag, requested: Any) -> bool:
    """Return whether a given value leaves the choice open, such as "auto"."""
    return requested in _NO_CHOICE or (flag.name == "num_threads" and requested == 0)


def resolved(config: Config, spec: EngineSpec) -> dict[str, tuple[Any, str]]:
    """Return the values that `config.resolve` chose for flags that leave the choice open."""
    return {
        **_of_model(config, spec),
        **_of_machine(config, spec),
        **_of_engine(spec),
        **_of_hub(config),
    }


def _of_model(config: Config, spec: EngineSpec) -> dict[str, tuple[Any, str]]:
    run, model = spec.run, spec.run.model
    is_stored = stored_quantization(model) is not None
    is_whole = run.max_model_tokens >= checkpoint_tokens(model)
    is_demo = config.model.model is None
    stored = Path(model.path, "generation_config.json")
    return {
        "model": (spec.served_names[0] if is_demo else config.model.model, DEMO),
        "served_model_name": (spec.served_names, DEMO if is_demo else MODEL),
        "tokenizer": (spec.tokenizer_path, MODEL),
        "tokenizer_mode": (spec.tokenizer.name, MODEL),
        "model_impl": (
            "transformers" if run.model_plugin.name.startswith("transformers") else "dovetail",
            MODEL,
        ),
        "dtype": (model.weight_dtype or model.dtype, MODEL),
        "quantization": (run.quantization.name, MODEL if is_stored else DEFAULT),
        "max_model_len": (run.max_model_tokens, MODEL if is_whole else MACHINE),
        "kv_cache_dtype": (run.kv_dtype, MODEL),
        "generation_config": (str(stored) if stored.is_file() else None, MODEL),
    }


def _of_machine(config: Config, spec: EngineSpec) -> dict[str, tuple[Any, str]]:
    run = spec.run
    threads: tuple[Any, str] = (run.num_threads, MACHINE)
    if not run.num_threads:
        variable = os.environ.get("OMP_NUM_THREADS")
        threads = (variable or "torch's", "OMP_NUM_THREADS" if variable else MACHINE)
    share = config.is_given("gpu_memory_utilization")
    facts: dict[str, tuple[Any, str]] = {
        "device": (run.device, MACHINE),
        "attention_backend": (run.attention.name, MACHINE),
        "worker_cls": (spec.worker.name, MACHINE),
        "num_threads": threads,
    }
    if spec.cache.memory_bytes is not None:
        by = "--gpu-memory-utilization" if share else MACHINE
        facts["kv_cache_memory_bytes"] = (spec.cache.memory_bytes, by)
    return facts


def _of_engine(spec: EngineSpec) -> dict[str, tuple[Any, str]]:
    return {
        "block_size": (spec.cache.block_tokens // spec.run.rank.context_size, DEFAULT),
        "max_num_seqs": (spec.schedule.max_rows, DEFAULT),
        "max_num_batched_tokens": (spec.schedule.max_step_tokens, DEFAULT),
        "distributed_executor_backend": (spec.executor.name, DEFAULT),
        "scheduler_cls": (spec.scheduler.name, DEFAULT),
        "stat_loggers": (tuple(picked.name for picked in spec.stat_loggers), DEFAULT),
    }


def sampling_rows(config: Config, spec: EngineSpec) -> list[Shown]:
    """Return the default sampling settings, each with its origin: a flag, the model, or dovetail.

    The fields of a request override all of them.
    """
    plain = SamplingParams()
    laid = {_NEW_TOKENS.get(name, name) for name in config.model.override_generation_config}
    rows = []
    for name in SAMPLING:
        origin = MODEL if name in spec.default_sampling else DEFAULT
        if name in spec.default_sampling and name in laid:
            origin = config.origins[OVERRIDES]
        elif origin == MODEL and config.is_given("generation_config"):
            origin = _origin_of_source(config)
        value = spec.default_sampling.get(name, getattr(plain, name))
        value = list(value) if isinstance(value, tuple) else value
        is_chosen = origin != DEFAULT
        rows.append(Shown(group="", name=name, value=value, origin=origin, is_chosen=is_chosen))
    return rows


def _origin_of_source(config: Config) -> str:
    source = config.model.generation_config
    return MODEL if source == "auto" else str(Path(source).expanduser() / FILE)


def _of_hub(config: Config) -> dict[str, tuple[Any, str]]:
    """Return the hub token that its client takes from a variable if no flag gives one."""
    names = ("HF_TOKEN", "HUGGING_FACE_HUB_TOKEN")
    variable = next((name for name in names if os.environ.get(name)), None)
    return {"hf_token": (MASK, variable)} if variable and config.model.hf_token is None else {}


_FACTS: dict[str, Callable[[EngineSpec], Any]] = {
    "model_path": lambda spec: spec.run.model.path,
    "architecture": lambda spec: spec.run.model.architecture,
    "model_plugin": lambda spec: (
        f"{spec.run.model_plugin.name}@{spec.run.model_plugin.distribution}"
    ),
    "compute_dtype": lambda spec: spec.run.model.dtype,
    "default_sampling": lambda spec: spec.default_sampling,
    "eos_token_ids": lambda spec: spec.run.model.eos_token_ids,
    "logits_processors": lambda spec: tuple(p.name for p in spec.run.logits_processors),
    "hooks": lambda spec: tuple(f"{h.name}@{h.distribution}" for h in spec.hooks),
    "records_steps": lambda spec: not spec.run.is_eager,
}


def facts(spec: EngineSpec) -> dict[str, Any]:
    """Return the decisions that have no flag."""
    return {name: fact(spec) for name, fact in _FACTS.items()}
