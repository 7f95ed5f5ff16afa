"""Speculation resolved: --speculative-config becomes a DraftSpec, every key of it checked.

Knows no drafter by name; keys that are not core's own are the drafter's options.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail import registry
from dovetail.config.config import Config
from dovetail.config.rules.selections import select
from dovetail.config.rules.worker_drafts import KEYS, Asked, runs_on_worker
from dovetail.errors import ConfigError
from dovetail.interfaces.spec import DraftSpec, ScheduleSpec, Selection
from dovetail.registry.options import convert

FLAG = "--speculative-config"
DEFAULT_DRAFT_TOKENS = 4


def draft_spec(config: Config, schedule: ScheduleSpec, scheduler: Selection) -> DraftSpec | None:
    """Return the drafter and how many tokens it drafts, or None without speculation. Raises:
    ConfigError."""
    settings = _settings(config)
    if not settings:
        return None
    asked = asked_drafter(config)
    assert asked is not None, "there are settings"
    needed = {"drafts"}
    if runs_on_worker(registry.load_selection(asked.drafter)):
        needed.add("worker_drafts")
    if not needed <= registry.load_selection(scheduler).capabilities:
        raise ConfigError(
            f'the scheduler "{scheduler.name}" does not plan drafts.',
            where=FLAG,
            fix="use --scheduler-cls continuous, or leave the flag out.",
        )
    max_tokens = asked.max_tokens
    pause_above = _count(settings, "disable_by_batch_size", None)
    if max_tokens >= schedule.max_step_tokens:
        raise ConfigError(
            f"{max_tokens} guesses do not fit in a step of {schedule.max_step_tokens} tokens.",
            where=f"{FLAG}.num_speculative_tokens",
            fix=f"use at most {schedule.max_step_tokens - 1}.",
        )
    return DraftSpec(
        drafter=asked.drafter,
        max_tokens=max_tokens,
        pause_above_requests=pause_above,
    )


def asked_drafter(config: Config) -> Asked | None:
    """Return the drafter that was asked for, every key of the flag checked; None without one.
    Raises: ConfigError."""
    settings = _settings(config)
    if not settings:
        return None
    method = settings.pop("method", None)
    if not isinstance(method, str):
        raise ConfigError(
            "no method says who guesses." if method is None else f"{method!r} is not a name.",
            where=f"{FLAG}.method",
            fix=f"use one of {', '.join(registry.names('drafter'))}.",
        )
    max_tokens = _count(settings, "num_speculative_tokens", DEFAULT_DRAFT_TOKENS)
    assert max_tokens is not None, "there is a default"
    _count(settings, "disable_by_batch_size", None)
    plugin = registry.load("drafter", method, where=f"{FLAG}.method")
    of_checkpoint = {}
    if runs_on_worker(plugin):
        of_checkpoint = {key: settings.pop(key) for key in KEYS if key in settings}
    drafter = _select(config, method, settings)
    return Asked(drafter=drafter, max_tokens=max_tokens, settings=of_checkpoint)


def _settings(config: Config) -> dict[str, Any]:
    return {k.replace("-", "_"): v for k, v in config.speculative.speculative_config.items()}


def _count(settings: dict[str, Any], key: str, default: int | None) -> int | None:
    """Return a count of at least 1 and take it from `settings`. Raises: ConfigError."""
    value = settings.pop(key, None)
    if value is None:
        return default
    where = f"{FLAG}.{key}"
    count: int = convert(value, int, where)
    if count < 1:
        raise ConfigError(f"{count} is out of range.", where=where, fix="give at least 1.")
    return count


def _select(config: Config, method: str, settings: Mapping[str, Any]) -> Selection:
    plugin = registry.load("drafter", method, where=f"{FLAG}.method")
    # Checked here first, so that an error names this flag.
    registry.options_for(plugin, settings, where=FLAG)
    options = {**config.plugin.options_of("drafter"), **settings}
    return select("drafter", method, where=f"{FLAG}.method", options=options)
