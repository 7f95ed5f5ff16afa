"""--cpu-cores: a list of processors as text, and which of them this process may use.

Processors have the system's numbers. The engine binds itself to them (`engine.process`); this
file sets nothing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection
from itertools import pairwise
from typing import TypeGuard

from dovetail.config.rules.machine.platform import core_of, usable_processors
from dovetail.errors import ConfigError

FLAG = "--cpu-cores"
BAR, UNBOUND = "|", "nobind"
"""Separator between the lists of several ranks, and the word for ranks that share all cores."""
WORDS = ("all", "auto", UNBOUND)
"""Words allowed instead of a list. The first two mean that no list is given."""
_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")
_FIX = "write numbers and ranges, as 0-3,8, with | between the lists of several ranks."


def word_of(text: str | None) -> str:
    """Return the word that is given instead of a list; "" for a list and for None."""
    word = (text or "").strip().lower()
    return word if word in WORDS else ""


def is_list(text: str | None) -> TypeGuard[str]:
    """Return whether the text is a list of processors."""
    return text is not None and not word_of(text)


def chosen_cores(text: str | None) -> tuple[int, ...]:
    """Return the processors of a list such as "0-3,8" in order; empty without a list.

    Lists of several ranks are combined. Raises: ConfigError for text that is not a list, and for
    processors that may not be used.
    """
    if not is_list(text):
        return ()
    if sys.platform != "linux":
        raise ConfigError(
            "CPU affinity is only supported on Linux.", where=FLAG, fix=f"leave {FLAG} out."
        )
    cores = tuple(sorted({core for part in text.split(BAR) for core in parse_cores(part)}))
    usable = usable_processors()
    missing = sorted(set(cores) - usable)
    if missing:
        raise ConfigError(
            f"this process may not use {_shown(missing)}.",
            where=FLAG,
            fix=f"choose among {_shown(sorted(usable))}.",
        )
    return cores


def cores_of_ranks(text: str | None, size: int) -> tuple[tuple[int, ...], ...]:
    """Return the processors of each of `size` ranks: as listed, else whole cores divided evenly.

    Empty if ranks are not or cannot be bound, or outnumber the cores. Raises: ConfigError
    """
    if sys.platform != "linux" or word_of(text) == UNBOUND:
        return ()
    cores = chosen_cores(text)
    if text is not None and BAR in text:
        return _listed_cores(text, size)
    parts = divided(cores or usable_processors(), size)
    return tuple(parts) if all(parts) else ()


def divided(processors: Collection[int], count: int) -> list[tuple[int, ...]]:
    """Return `count` parts of these processors, with the hardware threads of a core together.

    Neighbours stay together, since they share caches and memory. Parts differ by at most one core.
    """
    cores: dict[str, list[int]] = {}
    for processor in sorted(processors):
        cores.setdefault(core_of(processor), []).append(processor)
    each = list(cores.values())
    bounds = [len(each) * part // count for part in range(count + 1)]
    return [
        tuple(sorted(number for core in each[first:last] for number in core))
        for first, last in pairwise(bounds)
    ]


def _listed_cores(text: str, size: int) -> tuple[tuple[int, ...], ...]:
    """Return the lists between the separators. Raises: ConfigError unless there is one per rank."""
    lists = tuple(parse_cores(part) for part in text.split(BAR))
    if len(lists) != size:
        raise ConfigError(
            f"there are {len(lists)} lists of CPUs for {size} {'rank' if size == 1 else 'ranks'}.",
            where=FLAG,
            fix="give one list for all, or one for each.",
        )
    shared = sorted({core for core in sum(lists, ()) if sum(core in one for one in lists) > 1})
    if shared:
        raise ConfigError(
            f"{_shown(shared)} {'is' if len(shared) == 1 else 'are'} in several ranks' lists.",
            where=FLAG,
            fix="name each CPU once.",
        )
    return lists


def parse_cores(text: str) -> tuple[int, ...]:
    """Return the numbers in a list such as "0-3,8", in order. Raises: ConfigError."""
    cores: set[int] = set()
    for part in text.replace(" ", "").split(","):
        match = _RANGE.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            raise ConfigError(f"{text!r} is not a list of processors.", where=FLAG, fix=_FIX)
        cores.update(range(first, last + 1))
    return tuple(sorted(cores))


def _shown(cores: Collection[int]) -> str:
    """Return numbers as text with ranges: 0-3, 8."""
    runs: list[list[int]] = []
    for core in cores:
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return ", ".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else str(r[0]) for r in runs)
