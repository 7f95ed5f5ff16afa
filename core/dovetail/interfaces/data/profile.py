"""Profiling: what torch's profiler records, where traces go, and what every rank runs for it."""

from __future__ import annotations

import msgspec

FLAG = "--profiler-config"
GET_READY, START, STOP = "get_ready_to_profile", "start_profile", "stop_profile"
"""Methods of a worker that can be profiled, which every rank calls: without arguments, the last one
returns the path of the trace (see interfaces.executor.WorkerCall)."""


class ProfileSpec(msgspec.Struct, frozen=True, kw_only=True):
    """How engine number `engine` is profiled: each rank writes a trace into the folder.

    Recorded in addition to the times of operators: the shapes of their inputs, their memory use,
    the Python functions that call them, and their operation counts.
    """

    folder_path: str
    engine: int = 0
    with_shapes: bool = False
    with_memory: bool = False
    with_stacks: bool = False
    with_flops: bool = False
    is_compressed: bool = False


def of_engine(profile: ProfileSpec | None, engine: int) -> ProfileSpec | None:
    """Return the profile settings for an engine number, if there are any."""
    return None if profile is None else msgspec.structs.replace(profile, engine=engine)
