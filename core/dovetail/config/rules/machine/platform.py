"""Hardware of this machine, read from device nodes and files; imports no torch.

An estimate that is good enough for defaults: the worker makes the final check with torch.
"""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Iterator
from importlib import util
from pathlib import Path

_CGROUP, _OWN_GROUPS = Path("/sys/fs/cgroup"), Path("/proc/self/cgroup")
_MEMORY_GROUPS = (
    ("", "memory.max", "memory.current", True),
    ("memory", "memory.limit_in_bytes", "memory.usage_in_bytes", False),
)
_NO_LIMIT = 1 << 60
"""Version 1 writes a number above it where there is no limit."""
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
    return min((limit for limit, _ in _memory_limits()), default=None)


def container_rooms() -> list[int]:
    """Return the bytes that each limited control group of this process may still take. File content
    counts as free: the kernel drops it when memory is needed."""
    return [max(0, limit - used) for limit, used in _memory_limits()]


def available_bytes() -> int:
    """Return the main memory that this process may still allocate, container limits included."""
    import psutil  # in the parent only, and only while resolving

    return min([int(psutil.virtual_memory().available), *container_rooms()])


def _memory_limits() -> Iterator[tuple[int, int]]:
    """Yield limit and use, without file content, of this process's control groups and those around
    them, in both versions. Source: Linux, Documentation/admin-guide/cgroup-v1 and cgroup-v2.rst"""
    for root, limit_name, used_name, is_version_2 in _MEMORY_GROUPS:
        lines = (line.split(":", 2) for line in _text(_OWN_GROUPS).splitlines())
        wanted = "" if is_version_2 else "memory"
        found = [path for _, parts, path in lines if wanted in parts.split(",")]
        group = _CGROUP / root / (found[0] if found else "").lstrip("/")
        for folder in (group, *group.parents):
            limit, used = _number(folder / limit_name), _number(folder / used_name)
            if limit is not None and used is not None and limit < _NO_LIMIT:
                yield limit, used - _cached_bytes(_text(folder / "memory.stat"))
            if folder == _CGROUP / root:
                break


def _cached_bytes(stat: str) -> int:
    """Return the file content of a memory.stat, that of groups within included."""
    found = dict(line.split(None, 1) for line in stat.splitlines() if " " in line)
    words = ("active_file", "inactive_file")
    return sum(int(found.get(f"total_{word}", found.get(word, 0))) for word in words)


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


def _number(path: Path) -> int | None:
    text = _text(path).strip()
    return int(text) if text.isdecimal() else None


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except OSError:
        return ""
