"""The machine of a measurement: processor, memory, load, versions. Does not import torch itself."""

from __future__ import annotations

import os
import platform
import re
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

from dovetail.config.rules.machine.platform import usable_cores
from dovetail.version import __version__

_CPUINFO = Path("/proc/cpuinfo")
_ISA = re.compile(
    r"^(sse4_2|avx|avx2|fma|f16c|avx512\w*|avx_vnni\w*|amx_\w+"
    r"|asimd|asimddp|asimdhp|bf16|i8mm|sve\w*|sme|sme2)$"
)
_ISA_LINES = ("flags", "Features")
_MODEL_LINES = ("model name", "Model", "Hardware")
_PACKAGES = ("torch", "transformers", "tokenizers")
_VARIABLES = ("OMP_NUM_THREADS", "OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "CUDA_VISIBLE_DEVICES")


def machine_facts() -> dict[str, Any]:
    """Return the facts of this machine. Units: bytes; load over the last minute."""
    import psutil

    lines = _cpu_lines()
    isa_text = next((lines[name] for name in _ISA_LINES if name in lines), "")
    return {
        "cpu": next((lines[name] for name in _MODEL_LINES if name in lines), platform.processor()),
        "architecture": platform.machine(),
        "logical_cores": os.cpu_count(),
        "usable_physical_cores": usable_cores(),
        "isa": sorted(word for word in isa_text.split() if _ISA.match(word)),
        "ram_bytes": psutil.virtual_memory().total,
        "load_average": os.getloadavg()[0],
        "system": f"{platform.system()} {platform.release()}",
        "environment": {name: os.environ[name] for name in _VARIABLES if name in os.environ},
        **_torch_facts(),
    }


def version_facts() -> dict[str, str]:
    """Return the relevant package versions, read from metadata."""
    facts = {"dovetail": __version__, "python": platform.python_version()}
    for name in _PACKAGES:
        try:
            facts[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            facts[name] = "not installed"
    return facts


def _cpu_lines() -> dict[str, str]:
    """Return the first processor's lines of /proc/cpuinfo by name; empty on other systems."""
    try:
        text = _CPUINFO.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return {}
    lines: dict[str, str] = {}
    for line in text.splitlines():
        name, _, value = line.partition(":")
        lines.setdefault(name.strip(), value.strip())
    return lines


def _torch_facts() -> dict[str, Any]:
    """Return threads and GPU if this process has loaded torch, which a client has not."""
    torch = sys.modules.get("torch")
    if torch is None:
        return {}
    facts: dict[str, Any] = {"torch_threads": torch.get_num_threads()}
    if torch.cuda.is_available():
        facts["gpu"] = torch.cuda.get_device_name()
    return facts
