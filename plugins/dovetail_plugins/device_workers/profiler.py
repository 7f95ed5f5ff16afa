"""One rank under torch's profiler: what a worker's methods for it do.

They run in the thread that calls the model, which is the one profiled. A trace is in Chrome's
format; its file name has the engine, the rank and the time. Independent of other ranks: the caller
runs `get_ready` on all of them before any starts.
"""

from __future__ import annotations

import logging
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING

from dovetail.errors import RequestError
from dovetail.interfaces.data.profile import FLAG, ProfileSpec
from dovetail.interfaces.data.spec import RunSpec
from dovetail_kernels.spans import show

if TYPE_CHECKING:
    import torch

logger = logging.getLogger(__name__)


class _Running:
    """The profiler of this process (at most one), and when it was started."""

    profiler: torch.profiler.profile | None = None
    started_s = 0.0


_running = _Running()


def warm_up(profile: ProfileSpec, device: torch.device) -> None:
    """Run a profiler once and discard it. The first one of a process imports torch's compiler,
    which takes seconds, and requests would wait for it."""
    profiler = _new_profiler(profile, device)
    profiler.start()
    profiler.stop()


def get_ready(run: RunSpec) -> None:
    """Create the trace folder. Raises: RequestError when a profiler is already running here, or the
    folder is not writable"""
    profile = _profile_of(run)
    if _running.profiler is not None:
        raise RequestError(
            f"a profiler has run for {time.monotonic() - _running.started_s:.1f} s already.",
            fix="stop it before another one starts.",
            status=409,
        )
    folder = Path(profile.folder_path)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=folder):
            pass
    except OSError as error:
        raise RequestError(
            f"no trace can be written to {folder}: {error.strerror}.",
            fix=f"give {FLAG} a folder that every rank may write to.",
            status=507,
        ) from error


def start(run: RunSpec, device: torch.device) -> None:
    """Start the profiler of this rank. Raises: RequestError, as `get_ready`"""
    get_ready(run)
    profiler = _new_profiler(_profile_of(run), device)
    profiler.start()
    show(True)
    _running.profiler, _running.started_s = profiler, time.monotonic()
    logger.info("the profiler has started")


def stop(run: RunSpec) -> str:
    """Stop the profiler of this rank; return its trace file. Raises: RequestError when none is
    running, or the file cannot be written"""
    profile, profiler = _profile_of(run), _running.profiler
    if profiler is None:
        raise RequestError("no profiler runs.", fix="start it first.", status=409)
    _running.profiler = None
    show(False)
    profiler.stop()
    path = _path_of(profile, run)
    try:
        profiler.export_chrome_trace(str(path))
    except (OSError, RuntimeError) as error:
        raise RequestError(
            f"the trace could not be written to {path}: {error}", status=507
        ) from error
    logger.info("the trace is in %s", path)
    return str(path)


def drop() -> None:
    """Stop a profiler that is still running when its rank ends, without writing its trace."""
    profiler, _running.profiler = _running.profiler, None
    if profiler is not None:
        logger.warning("the profiler still ran, and its trace is lost: stop it before the end")
        show(False)
        profiler.stop()


def _profile_of(run: RunSpec) -> ProfileSpec:
    """Return what to profile. Raises: RequestError if profiling is not set up"""
    if run.profile is None:
        raise RequestError("profiling is off.", fix=f"start with {FLAG} and a folder.")
    return run.profile


def _new_profiler(profile: ProfileSpec, device: torch.device) -> torch.profiler.profile:
    """Return a profiler of the CPU and, if it is another device, the run's device."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as Profiler

    activities = [ProfilerActivity.CPU]
    if device.type == "cuda":
        activities.append(ProfilerActivity.CUDA)
    return Profiler(
        activities=activities,
        record_shapes=profile.with_shapes,
        profile_memory=profile.with_memory,
        with_stack=profile.with_stacks,
        with_flops=profile.with_flops,
    )


def _path_of(profile: ProfileSpec, run: RunSpec) -> Path:
    """Return a unique file name per rank, engine and start of the profiler."""
    ending = ".pt.trace.json.gz" if profile.is_compressed else ".pt.trace.json"
    name = f"engine{profile.engine}_rank{run.rank.rank}.{time.time_ns() // 1_000_000}{ending}"
    return Path(profile.folder_path) / name
