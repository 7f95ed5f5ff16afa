"""Speculation resolved: --speculative-config becomes a DraftSpec, every key of it checked.

Knows no drafter by name; keys that are not core's own are the drafter's options.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail import registry
from dovetail.config.config import Config
from dovetail.config.rules.selections import select
from dovetail.errors import ConfigError
from dovetail.interfaces.spec import DraftSpec, ScheduleSpec, Selection
from dovetail.registry.options import convert

FLAG = "--speculative-config"
DEFAULT_DRAFT_TOKENS = 4


def draft_spec(config: Config, schedule: ScheduleSpec, scheduler: Selection) -> DraftSpec | None:
    """Return the drafter and how many tokens it drafts, or None without speculation. Raises:
    ConfigError."""
    settings = {k.replace("-", "_"): v for k, v in config.speculative.speculative_config.items()}
    if not settings:
        return None
    method = settings.pop("method", None)
    if not isinstance(method, str):
        raise ConfigError(
            "no method says who guesses." if method is None else f"{method!r} is not a name.",
            where=f"{FLAG}.method",
            fix=f"use one of {', '.join(registry.names('drafter'))}.",
        )
    if "drafts" not in registry.load_selection(scheduler).capabilities:
        raise ConfigError(
            f'the scheduler "{scheduler.name}" does not plan drafts.',
            where=FLAG,
            fix="use --scheduler-cls continuous, or leave the flag out.",
        )
    max_tokens = _count(settings, "num_speculative_tokens", DEFAULT_DRAFT_TOKENS)
    pause_above = _count(settings, "disable_by_batch_size", None)
    assert max_tokens is not None
    if max_tokens >= schedule.max_step_tokens:
        raise ConfigError(
            f"{max_tokens} guesses do not fit in a step of {schedule.max_step_tokens} tokens.",
            where=f"{FLAG}.num_speculative_tokens",
            fix=f"use at most {schedule.max_step_tokens - 1}.",
        )
    return DraftSpec(
        drafter=_select(config, method, settings),
        max_tokens=max_tokens,
        pause_above_requests=pause_above,
    )


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
