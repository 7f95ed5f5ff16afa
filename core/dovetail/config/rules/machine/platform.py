"""Hardware of this machine, read from device nodes and files; imports no torch.

An estimate that is good enough for defaults: the worker makes the final check with torch.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable
from importlib import util
from pathlib import Path

from dovetail_kernels.cpu.control_groups import memory_limits

_CGROUP = Path("/sys/fs/cgroup")
VISIBLE_DEVICES = "CUDA_VISIBLE_DEVICES"
_CPUS = Path("/sys/devices/system/cpu")


def no_cuda_reason() -> str | None:
    """Return why no NVIDIA GPU can be used, or None if one seems usable."""
    if os.environ.get(VISIBLE_DEVICES) in ("", "-1"):
        return "CUDA_VISIBLE_DEVICES hides all GPUs"
    nodes = ("/proc/driver/nvidia/version", "/dev/nvidiactl", "/dev/dxg")
    if not any(Path(node).exists() for node in nodes):
        return "this machine has no NVIDIA driver"
    if torch_cuda_version() is None:
        return "the installed torch was built without CUDA"
    return None


def cuda_devices() -> list[str]:
    """Return the GPUs that this process may use, named as in CUDA_VISIBLE_DEVICES."""
    named = os.environ.get(VISIBLE_DEVICES)
    if named is not None:
        return [name for name in named.replace(" ", "").split(",") if name]
    nodes = (re.fullmatch(r"nvidia(\d+)", node.name) for node in Path("/dev").glob("nvidia*"))
    return [str(number) for number in range(sum(1 for node in nodes if node))]


def torch_cuda_version() -> str | None:
    """Return the CUDA version that torch was built for, read from its version file, or None."""
    spec = util.find_spec("torch")
    if spec is None or spec.origin is None:
        return None
    try:
        text = (Path(spec.origin).parent / "version.py").read_text(encoding="utf-8")
    except OSError:
        return None
    match = re.search(r"""^cuda\b[^=]*=\s*['"]([\d.]+)['"]""", text, re.MULTILINE)
    return match.group(1) if match else None


def memory_limit_bytes() -> int | None:
    """Return the memory limit of this process's control groups; None: no limit."""
    return min((limit for limit, _ in memory_limits()), default=None)


def available_bytes() -> int:
    """Return the main memory that this process may still allocate, container limits included."""
    import psutil  # in the parent only, and only while resolving

    rooms = (max(0, limit - used) for limit, used in memory_limits())
    return min(int(psutil.virtual_memory().available), *rooms, 1 << 62)


def usable_cores(processors: Iterable[int] = ()) -> int:
    """Return the number of usable physical cores, container quotas included; at least 1.

    `processors` are those that the process will be bound to, if it is bound.
    """
    cores = {core_of(cpu) for cpu in processors or usable_processors()}
    return max(1, min(len(cores), quota_cores() or len(cores)))


def usable_processors() -> set[int]:
    """Return the processors (hardware threads) that this process may use, by number."""
    return os.sched_getaffinity(0) if sys.platform == "linux" else set(range(os.cpu_count() or 1))


def default_threads(processors: Iterable[int] = ()) -> int:
    """Return the default threads of a worker on these cores; 0 leaves it to OMP_NUM_THREADS."""
    if os.environ.get("OMP_NUM_THREADS"):
        return 0
    return usable_cores(processors)


def core_of(cpu: int) -> str:
    """Return an identifier of the physical core that a processor belongs to."""
    try:
        path = _CPUS / f"cpu{cpu}" / "topology" / "thread_siblings_list"
        return path.read_text(encoding="utf-8").strip()
    except OSError:
        return str(cpu)


def quota_cores() -> int | None:
    """Return the container's CPU quota in cores, rounded down; None: no limit."""
    try:
        quota, period = (_CGROUP / "cpu.max").read_text(encoding="utf-8").split()
    except (OSError, ValueError):
        return None
    return None if quota == "max" else max(1, int(quota) // int(period))
