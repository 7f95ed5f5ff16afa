"""The picture of `dovetail inspect --plot`: memory by part, compared with the free memory."""

from __future__ import annotations

from pathlib import Path

from dovetail.errors import ConfigError
from dovetail_plugins.inspect.facts import Inspected
from dovetail_plugins.inspect.render import size
from dovetail_plugins.plot import draw_parts


def memory_parts(found: Inspected) -> dict[str, int]:
    """Return the nonzero bytes of each layer group, the rotary tables and the KV cache that `serve`
    would use. Raises: ConfigError if the memory could not be computed"""
    if found.memory is None:
        raise ConfigError(
            "the memory of this checkpoint could not be counted; the warnings say why.",
            where="--plot",
            fix="leave --plot out.",
        )
    parts = {group.name: group.kept_bytes for group in found.groups}
    parts["rotary tables"] = found.memory.tables_bytes
    parts["KV cache"] = found.memory.cache_bytes or 0
    return {name: part for name, part in parts.items() if part}


def draw_memory(path: str, found: Inspected) -> None:
    """Draw the parts as one bar, with a line at the free memory. Raises: ConfigError"""
    parts = memory_parts(found)
    unit, unit_bytes = ("GiB", 2**30) if sum(parts.values()) >= 2**30 else ("MiB", 2**20)
    sizes = {f"{name}: {size(part)}": part / unit_bytes for name, part in parts.items()}
    assert found.memory is not None  # checked by memory_parts
    free = found.memory.free_bytes
    title = f"{Path(found.path).name}: {size(sum(parts.values()))} on {found.memory.device}"
    if free is not None:
        title += f", {size(free)} free"
    draw_parts(path, title, sizes, unit, (free or 0) / unit_bytes)
