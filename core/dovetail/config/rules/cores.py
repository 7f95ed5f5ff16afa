"""--cpu-cores: a list of processors as text, and what of it this process may use.

Processors are numbered as the system does. The engine keeps itself to them (`engine.ipc.process`);
this file sets nothing.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Collection

from dovetail.config.rules.platform import usable_processors
from dovetail.errors import ConfigError

FLAG = "--cpu-cores"
_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")
_FIX = "write numbers and ranges, as 0-3,8."


def chosen_cores(text: str | None) -> tuple[int, ...]:
    """Return the processors of a list such as "0-3,8" in order; none for no list.

    Raises: ConfigError for text that is not a list, and for processors that may not be used.
    """
    if text is None:
        return ()
    if sys.platform != "linux":
        raise ConfigError(
            "CPU affinity is only supported on Linux.", where=FLAG, fix=f"leave {FLAG} out."
        )
    cores = parse_cores(text)
    usable = usable_processors()
    missing = sorted(set(cores) - usable)
    if missing:
        raise ConfigError(
            f"this process may not use {_shown(missing)}.",
            where=FLAG,
            fix=f"choose among {_shown(sorted(usable))}.",
        )
    return cores


def parse_cores(text: str) -> tuple[int, ...]:
    """Return the numbers that a list such as "0-3,8" names, in order. Raises: ConfigError."""
    cores: set[int] = set()
    for part in text.replace(" ", "").split(","):
        match = _RANGE.fullmatch(part)
        first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if last < first:
            raise ConfigError(f"{text!r} is not a list of processors.", where=FLAG, fix=_FIX)
        cores.update(range(first, last + 1))
    return tuple(sorted(cores))


def _shown(cores: Collection[int]) -> str:
    """Return numbers as text with runs joined: 0-3, 8."""
    runs: list[list[int]] = []
    for core in cores:
        if runs and core == runs[-1][-1] + 1:
            runs[-1].append(core)
        else:
            runs.append([core])
    return ", ".join(f"{r[0]}-{r[-1]}" if len(r) > 1 else str(r[0]) for r in runs)
