"""How much of a model is in memory when it is larger than that, and how fast it then is. No torch.

The speed is the time to read what is not in memory, and to go through what a token uses at
COMPUTED_BYTES_PER_S. Experts are taken to be chosen evenly: trained models choose some more often,
so they miss less.
"""

from __future__ import annotations

import mmap
import os
import random
import shutil
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from dovetail_plugins.packed_weights.folder import SPARE_BYTES

MEMORY_SHARE = 0.8
"""Weights that take a larger share of the free memory are read from disk."""
EXPERTS_SHARE = 0.25
"""Dense layers leave this share of the memory to experts, if there are any."""
_MARGIN_SHARE, _LEAST_MARGIN, _LARGEST_MARGIN = 0.1, 96 << 20, 1 << 30
_PROCESS_BYTES = 400 << 20
"""What a server takes besides weights and cache."""
COMPUTED_BYTES_PER_S = 8e9
"""Assumed: what a desktop's processor multiplies by."""
NUM_READERS = 4
_PIECE_BYTES, _NUM_PIECES = 1 << 20, 64


@dataclass(frozen=True, slots=True, kw_only=True)
class DiskRun:
    """How a model that is larger than memory runs. `read_bytes_per_token` is an estimate;
    `disk_bytes_per_s` was measured just now. What is None is not known."""

    read_bytes_per_token: int
    disk_bytes_per_s: float | None
    tokens_per_s: float | None


def is_larger_than_memory(num_bytes: int, free_bytes: int) -> bool:
    """Return whether packed weights will not fit into the free memory."""
    return num_bytes > MEMORY_SHARE * free_bytes


def margin_bytes(all_bytes: int) -> int:
    """Return what stays free of a memory."""
    return min(_LARGEST_MARGIN, max(_LEAST_MARGIN, int(_MARGIN_SHARE * all_bytes)))


def disk_run(
    *,
    dense_bytes: int,
    block_bytes: int,
    expert_bytes: int,
    chosen_share: float,
    room_bytes: int,
    disk_bytes_per_s: float | None,
) -> DiskRun:
    """Return how a model runs in `room_bytes`, which its process takes, too.

    `block_bytes`: dense weights of the largest block; `chosen_share`: of the experts, by a token.
    """
    room = max(0, room_bytes - _PROCESS_BYTES)
    limit = room * (1 - EXPERTS_SHARE) if expert_bytes else room
    if dense_bytes > limit:
        limit = max(0, limit - 2 * block_bytes)
    resident = min(dense_bytes, limit)
    missing = dense_bytes - resident
    if expert_bytes:
        share = min(1.0, max(0.0, room - resident) / expert_bytes)
        missing += expert_bytes * chosen_share * (1 - share)
    computed_s = (dense_bytes + expert_bytes * chosen_share) / COMPUTED_BYTES_PER_S
    speed = 1 / (missing / disk_bytes_per_s + computed_s) if disk_bytes_per_s else None
    return DiskRun(
        read_bytes_per_token=int(missing),
        disk_bytes_per_s=disk_bytes_per_s,
        tokens_per_s=speed,
    )


def has_disk_room(folder: Path, num_bytes: int) -> bool:
    """Return whether an entry of so many bytes may be written to a folder that may not exist."""
    try:
        return shutil.disk_usage(_existing(folder)).free >= num_bytes + SPARE_BYTES
    except OSError:
        return False


def disk_speed(file: Path, folder: Path) -> float | None:
    """Return how fast a file is read past the page cache, in bytes/s; None if that cannot be told,
    or the folder is on another disk."""
    try:
        if file.stat().st_dev != _existing(folder).stat().st_dev:
            return None
        num_places = file.stat().st_size // _PIECE_BYTES
        if num_places < _NUM_PIECES:
            return None
        descriptor = os.open(file, os.O_RDONLY | os.O_DIRECT)
    except (OSError, AttributeError):  # no such flag on this system
        return None
    try:
        return _speed(descriptor, random.sample(range(num_places), _NUM_PIECES))
    except OSError:
        return None
    finally:
        os.close(descriptor)


def _speed(descriptor: int, places: list[int]) -> float:
    """Read pieces of a file by several threads; return bytes/s. Raises: OSError"""

    def read(first: int) -> int:
        with mmap.mmap(-1, _PIECE_BYTES) as buffer:
            return sum(
                os.preadv(descriptor, [buffer], place * _PIECE_BYTES)
                for place in places[first::NUM_READERS]
            )

    begin_s = time.perf_counter()
    with ThreadPoolExecutor(NUM_READERS) as threads:
        num_bytes = sum(threads.map(read, range(NUM_READERS)))
    return num_bytes / (time.perf_counter() - begin_s)


def _existing(folder: Path) -> Path:
    """Return a folder, or the first one around it that exists."""
    return next(one for one in (folder, *folder.parents) if one.exists())
