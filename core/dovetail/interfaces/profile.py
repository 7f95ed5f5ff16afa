"""Profiling: what torch's profiler notes, where traces go, and what every rank runs for it."""

from __future__ import annotations

import msgspec

FLAG = "--profiler-config"
GET_READY, START, STOP = (
    f"dovetail.runner.profiler:{name}" for name in ("get_ready", "start", "stop")
)
"""Functions that every rank calls with its worker (see interfaces.executor.WorkerCall)."""


class ProfileSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How engine number `engine` is profiled: each rank writes a trace into the folder.

    What is noted of operators beside their times: the shapes of their inputs, the memory they take,
    the Python functions that call them, a count of operations.
    """

    folder_path: str
    engine: int = 0
    with_shapes: bool = False
    with_memory: bool = False
    with_stacks: bool = False
    with_flops: bool = False
    is_compressed: bool = False


def of_engine(profile: ProfileSpec | None, engine: int) -> ProfileSpec | None:
    """Return how the engine of a number is profiled, if it is."""
    return None if profile is None else msgspec.structs.replace(profile, engine=engine)
