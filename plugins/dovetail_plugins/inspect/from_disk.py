"""Whether a model that does not fit into memory would run from disk, and about how fast."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail import registry
from dovetail.config.checkpoint.sources.weights_check import weight_files
from dovetail.interfaces.data.spec import EngineSpec
from dovetail_plugins.inspect.facts import Group
from dovetail_plugins.inspect.stored_layers import EMBEDDING, EXPERTS, UNUSED
from dovetail_plugins.packed_weights.bounds import (
    DiskRun,
    disk_run,
    disk_speed,
    has_disk_room,
    is_larger_than_memory,
)
from dovetail_plugins.packed_weights.folder import cache_folder

if TYPE_CHECKING:
    from dovetail_plugins.inspect.how import How


def from_disk(
    groups: Sequence[Group], how: How, spec: EngineSpec | None, free_bytes: int | None
) -> DiskRun | None:
    """Return how a model would run that does not fit into memory; None if it would not."""
    if spec is None or free_bytes is None or not how.is_cpu or not how.packs or not how.is_own:
        return None
    run = spec.run
    load_format = registry.admin.load_selection(run.load_format)
    if not run.load_options.get("weight_cache_bytes") or run.offload_bytes:
        return None
    if "random_weights" in load_format.capabilities:
        return None
    files = [Path(file) for file in weight_files(run.model.path)]
    num_bytes = sum(file.stat().st_size for file in files)
    folder = cache_folder()
    if not is_larger_than_memory(num_bytes, free_bytes) or not has_disk_room(folder, num_bytes):
        return None
    experts = [group for group in groups if group.name == EXPERTS]
    dense = [group for group in groups if group.name not in (EMBEDDING, EXPERTS, UNUSED)]
    dense_bytes = sum(group.kept_bytes for group in dense)
    chosen, parameters = (
        sum(getattr(group, name) for group in experts)
        for name in ("active_parameters", "parameters")
    )
    return disk_run(
        dense_bytes=dense_bytes,
        block_bytes=dense_bytes // max(1, run.model.num_layers),
        expert_bytes=sum(group.kept_bytes for group in experts),
        chosen_share=chosen / parameters if parameters else 0.0,
        room_bytes=free_bytes - (spec.cache.memory_bytes or 0),
        disk_bytes_per_s=disk_speed(max(files, key=lambda file: file.stat().st_size), folder),
    )


def in_words(run: DiskRun) -> str:
    """Return the fact as a sentence's part."""
    if run.tokens_per_s is None or run.disk_bytes_per_s is None:
        return "runs from disk"
    speed = run.tokens_per_s
    shown = f"{speed:.0f}" if speed >= 10 else f"{speed:.1g}" if speed < 1 else f"{speed:.1f}"
    read = f"{run.read_bytes_per_token / 2**20:.0f} MiB a token"
    disk = f"{run.disk_bytes_per_s / 1e9:.1f} GB/s (measured now)"
    return f"runs from disk, about {shown} tokens/s: {read} from a disk that reads {disk}"
