"""What `gpu.py` says of the machine, and its results as Markdown. Measures nothing."""

from __future__ import annotations

import platform
import time
from importlib.util import find_spec
from typing import Any

import torch

Result = dict[str, Any]
PACKAGES = ("msgspec", "numpy", "prometheus_client", "psutil", "tqdm", "transformers", "triton")
"""What sections import beside torch; transformers only for `throughput`."""


def machine(device: str) -> Result:
    """Return what the figures were measured on."""
    found: Result = {"python": platform.python_version(), "torch": torch.__version__}
    found["missing"] = [name for name in PACKAGES if find_spec(name) is None]
    found["date"] = time.strftime("%Y-%m-%d", time.gmtime())
    if device == "cuda":
        found["device"] = torch.cuda.get_device_name()
        found["cuda"] = torch.version.cuda
    try:
        import triton

        found["triton"] = triton.__version__
    except ImportError:
        found["triton"] = None
    return found


def table(results: Result) -> str:
    """Return all results as Markdown: a list of figures a section, a table of ops."""
    lines: list[str] = []
    for section, result in results.items():
        lines += [f"## {section}", ""]
        rows = result.get("rows", [])
        plain = {key: value for key, value in result.items() if key not in ("rows", "trace")}
        lines += [f"- {key}: {_text(value)}" for key, value in plain.items()]
        if rows:
            names = ("op", "case", "dtype", "implementation", "us", "of_copy", "of_matrix", "error")
            lines += ["", "| " + " | ".join(names) + " |", "|---" * len(names) + "|"]
            for row in rows:
                lines.append("| " + " | ".join(_text(row.get(n, "")) for n in names) + " |")
        lines.append("")
    return "\n".join(lines)


def _text(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key} {_text(part)}" for key, part in value.items())
    return f"{value:.4g}" if isinstance(value, float) else str(value)
