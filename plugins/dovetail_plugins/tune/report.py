"""What `dovetail tune` prints, and the YAML file that `dovetail serve --config` reads."""

from __future__ import annotations

import json
from typing import Any

from dovetail.config.config import DEMO_ORIGIN, find_flag
from dovetail_plugins.tune.search import Outcome, Search
from dovetail_plugins.tune.settings import TuneFlags

MIB = 2**20


def value_text(flags: TuneFlags, value: float) -> str:
    """Return a measured value with its unit."""
    if flags.goal == "memory":
        return f"{value / MIB:.0f} MiB"
    if flags.goal == "throughput":
        return f"{1 / value:.1f} tokens/s"
    return f"{value:.3g} s"


def fields_text(fields: Any) -> str:
    """Return settings as they are written on the command line."""
    words = []
    for name, value in fields.items():
        shown = f"'{json.dumps(value)}'" if isinstance(value, dict) else value
        words.append(f"--{name.replace('_', '-')} {shown}")
    return " ".join(words)


def outcome_line(flags: TuneFlags, outcome: Outcome) -> str:
    """Return one line about a setting that was tried."""
    what = fields_text(outcome.fields)
    if outcome.refusal:
        return f"  {what}: refused: {outcome.refusal}"
    loss = f"perplexity {100 * (outcome.loss or 0.0):+.2f} %"
    if outcome.ratio is None or outcome.value is None:
        return f"  {what}: {loss}, more than {flags.max_loss:g} %: not adopted"
    verdict = "adopted" if outcome.is_adopted else "not adopted"
    value = value_text(flags, outcome.value)
    return f"  {what}: {value}, {1 / outcome.ratio:.2f} times as good, {loss}: {verdict}"


def summary_lines(search: Search) -> list[str]:
    """Return the result of a search."""
    flags = search.flags
    first, last = (value_text(flags, value) for value in (search.first_value, search.value))
    lines = [f"not tried, for lack of time: {fields_text(fields)}" for fields in search.untried]
    if not search.best:
        return [*lines, f"nothing is better than the settings as they are ({first})"]
    gain = search.first_value / search.value
    return [
        *lines,
        f"best: {fields_text(search.best)}",
        f"{first} -> {last}, {gain:.2f} times as good",
    ]


def yaml_text(search: Search, cpu: str) -> str:
    """Return the settings as YAML, with what was measured as comments. Secrets are left out."""
    import yaml

    comments = [f"Found by `dovetail tune --for {search.flags.goal}`.", cpu, *summary_lines(search)]
    head = "".join(f"# {line}\n" for line in comments)
    return head + yaml.safe_dump(settings_of(search), sort_keys=False, allow_unicode=True)


def settings_of(search: Search) -> dict[str, Any]:
    """Return the user's settings and those that were found, under the names of flags."""
    config, flags = search.config, search.flags
    found = dict(search.best)
    if flags.goal == "memory" or flags.context is not None:
        found = search.room() | found
    given = [
        name
        for name, origin in config.origins.items()
        if origin != DEMO_ORIGIN and not find_flag(name).meta.secret
    ]
    settings = {name: config.value(name) for name in sorted(given)} | found
    return {name.replace("_", "-"): _plain(value) for name, value in settings.items()}


def _plain(value: Any) -> Any:
    return list(value) if isinstance(value, tuple) else value
