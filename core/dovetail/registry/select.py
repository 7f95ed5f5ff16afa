"""Choosing among entries: the "auto" rule, and the reasons an explicit choice does not fit.

Calls `why_not(query)` of candidates that are already loaded.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from dovetail.errors import PluginError
from dovetail.interfaces.plugin import Plugin
from dovetail.registry.entry import Entry
from dovetail.registry.kinds import Kind

logger = logging.getLogger("dovetail.registry")
VERBOSE_VARIABLE = "DOVETAIL_VERBOSE"
"""Set to 1 by the command line under --verbose, for it and its child processes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """An entry with its class, or with the reason why it has none."""

    entry: Entry
    plugin: type[Plugin] | None = None
    reason: str = ""


def reasons_against(plugin: type[Plugin], query: Any) -> list[str]:
    """Return why the plugin does not fit the query; a `why_not` that raises is a reason too."""
    if query is None:
        return []
    try:
        return list(plugin.why_not(query))
    except Exception as error:
        return [f"why_not raised {type(error).__name__}: {error}"]


def pick(kind: Kind, candidates: Sequence[Candidate], query: Any, where: str) -> Candidate:
    """Return the best candidate that fits, and log one line; --verbose adds why each other lost.

    The highest `auto_rank` wins, then dovetail's own, then the name that sorts first.
    Raises: PluginError when none fits.
    """
    losers: list[tuple[str, str]] = []
    fitting: list[tuple[tuple[int, bool, str], Candidate]] = []
    for candidate in candidates:
        reasons = [candidate.reason]
        if candidate.plugin is not None:
            reasons = reasons_against(candidate.plugin, query)
        if candidate.plugin is None or reasons:
            losers.append((candidate.entry.name, "; ".join(reasons)))
        else:
            is_foreign = not candidate.entry.is_own
            key = (-candidate.plugin.auto_rank, is_foreign, candidate.entry.id)
            fitting.append((key, candidate))
    if not fitting:
        raise _nothing_fits(kind, losers, where)
    fitting.sort(key=lambda item: item[0])
    losers += [(c.entry.name, f"fits, but ranks {-key[0]}") for key, c in fitting[1:]]
    best = fitting[0][1]
    others = f", of {len(losers) + 1} (--verbose tells why)" if losers else ""
    logger.info("%s auto: %s%s", kind.name, best.entry.name, others)
    level = logging.INFO if os.environ.get(VERBOSE_VARIABLE) == "1" else logging.DEBUG
    for name, reason in losers:
        logger.log(level, "%s auto: not %s: %s", kind.name, name, reason)
    return best


def _nothing_fits(kind: Kind, losers: Sequence[tuple[str, str]], where: str) -> PluginError:
    lines = "".join(f"\n  {name}: {reason}." for name, reason in losers)
    what = f"no {kind.name} fits.{lines}" if losers else f"no {kind.name} is registered."
    return PluginError(
        what, where=where, fix="solve one of these problems, or choose a plugin by name."
    )
