"""`dovetail collect-env`: the facts of a machine and an installation for a bug report.

Every fact is collected independently; for a failed one the report has the reason. torch and the
native kernels are loaded in separate processes, as a broken installation may crash the process that
loads it. Secrets are masked.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import subprocess
import sys
from collections.abc import Callable, Mapping
from importlib import metadata
from pathlib import Path
from typing import Any

from dovetail.config.report.secrets import masked_variable
from dovetail.interfaces.command import Command
from dovetail.interfaces.plugin import Info
from dovetail.json_values import json_value

LIMIT_S = 20.0
TORCH_LIMIT_S = 120.0
GIB = 2**30
PACKAGES = (
    *("torch", "transformers", "tokenizers", "safetensors", "huggingface_hub", "numpy"),
    *("fastapi", "starlette", "uvicorn", "uvloop", "httptools", "pydantic", "msgspec", "pyzmq"),
    *("prometheus-client", "pluggy", "jinja2", "pyyaml", "psutil"),
)
OPTIONAL = ("opentelemetry-sdk", "opentelemetry-exporter-otlp-proto-http", "matplotlib", "openai")
"""Optional packages, which may be absent."""
_VARIABLES = re.compile(
    r"(DOVETAIL|VLLM|OMP|KMP|MKL|OPENBLAS|GOMP|HF|HUGGING_FACE|TRANSFORMERS|TOKENIZERS|TORCH|"
    r"PYTORCH|CUDA|NVIDIA|NCCL|OTEL|PROMETHEUS|PYTHON|LD|MALLOC)_\w+|"
    r"PYTHONPATH|TMPDIR|CXX|VIRTUAL_ENV|LANG|\w*_proxy|\w*_PROXY"
)
_TORCH = """
import json, torch
gpus = []
if torch.cuda.is_available():
    gpus = [torch.cuda.get_device_name(i) for i in range(torch.cuda.device_count())]
print(json.dumps({
    "version": torch.__version__, "cuda": torch.version.cuda or "none",
    "threads": torch.get_num_threads(), "interop_threads": torch.get_num_interop_threads(),
    "cpu_capability": torch.backends.cpu.get_cpu_capability(), "gpus": gpus,
    "build": torch.__config__.show().split()}))
"""
_NATIVE = """
import json
from dovetail_kernels.cpu import library
found = library.library()
print(json.dumps({"state": library.missing_reason()} if found is None else {
    "state": "loaded", "isa": found.isa, "best_isa": found.best_isa, "threads": found.num_threads(),
    "file": found.path.name}))
"""
_BUILD = re.compile(r"(BLAS_INFO|USE_MKLDNN|USE_OPENMP|USE_CUDA|PERF_WITH_AVX\d*)=(\w+)")


class CollectEnvCommand(Command):
    """`dovetail collect-env`."""

    info = Info(summary="describe machine and installation, for a bug report")

    def add_arguments(self, parser: argparse.ArgumentParser) -> None:
        """Add the argument of collect-env. Mutates: parser."""
        parser.add_argument("--json", action="store_true", help="print JSON")

    def run(self, args: argparse.Namespace) -> int:
        """Print everything; return the exit status."""
        found = collect()
        print(json.dumps(found, indent=2) if args.json else "\n".join(as_text(found)))
        return 0


def collect() -> dict[str, Any]:
    """Return the sections in order, each as name -> fact."""
    return {name: _guarded(section) for name, section in SECTIONS.items()}


def as_text(found: Mapping[str, Any]) -> list[str]:
    """Return a heading per section, and a line per fact."""
    lines: list[str] = []
    for section, facts in found.items():
        lines += ["", section] if lines else [section]
        pairs = list(facts.items())
        width = max((len(name) for name, _ in pairs), default=0) + 2
        lines += [f"  {name:<{width}}{_text(value)}".rstrip() for name, value in pairs] or [
            "  none"
        ]
    return lines


def _text(value: Any) -> str:
    if isinstance(value, list):
        return ", ".join(map(str, value)) or "none"
    return json.dumps(value) if isinstance(value, dict) else str(value)


def _guarded(section: Callable[[], Any]) -> Any:
    try:
        return section()
    except Exception as error:  # an incomplete report is better than none
        return {"fault": f"{type(error).__name__}: {error}"}


def _system() -> dict[str, Any]:
    import platform

    return {
        "os": _os_name(),
        "kernel": f"{platform.system()} {platform.release()} {platform.machine()}",
        "libc": " ".join(platform.libc_ver()) or "unknown",
        "python": f"{platform.python_version()} ({platform.python_implementation()})",
        "executable": _short(sys.executable),
    }


def _os_name() -> str:
    import platform

    try:
        return platform.freedesktop_os_release().get("PRETTY_NAME", platform.platform())
    except OSError:
        return platform.platform()  # not Linux, or the name is not available


def _processor() -> dict[str, Any]:
    import psutil

    from dovetail.config.rules.machine.platform import quota_cores, usable_cores, usable_processors
    from dovetail_plugins.bench.machine import machine_facts

    facts = machine_facts()
    return {
        "model": facts["cpu"],
        "flags": facts["isa"],
        "processors": facts["logical_cores"],
        "cores": psutil.cpu_count(logical=False) or "unknown",
        "usable_processors": len(usable_processors()),
        "usable_cores": usable_cores(),
        "container_limit_cores": quota_cores() or "none",
        "load_average": round(facts["load_average"], 2),
    }


def _memory() -> dict[str, Any]:
    import psutil

    from dovetail.config.rules.machine.platform import available_bytes, memory_limit_bytes

    limit = memory_limit_bytes()
    memory, swap = psutil.virtual_memory(), psutil.swap_memory()
    return {
        "total_gib": round(memory.total / GIB, 1),
        "free_gib": round(memory.available / GIB, 1),
        "usable_gib": round(available_bytes() / GIB, 1),
        "container_limit_gib": "none" if limit is None else round(limit / GIB, 1),
        "swap_gib": round(swap.total / GIB, 1),
    }


def _gpus() -> dict[str, Any]:
    from dovetail.config.rules.machine.platform import no_cuda_reason

    wanted = "name,memory.total,memory.used,driver_version,compute_cap"
    try:
        output = _output(["nvidia-smi", f"--query-gpu={wanted}", "--format=csv,noheader"], LIMIT_S)
    except FileNotFoundError:
        return {"nvidia-smi": "none", "usable": no_cuda_reason() or "yes"}
    except (OSError, subprocess.SubprocessError) as error:
        return {"nvidia-smi": f"failed: {error}", "usable": no_cuda_reason() or "yes"}
    facts: dict[str, Any] = {f"gpu {i}": line for i, line in enumerate(output.splitlines()) if line}
    return {"nvidia-smi": f"{len(facts)} GPUs", **facts, "usable": no_cuda_reason() or "yes"}


def _dovetail() -> dict[str, Any]:
    import dovetail
    from dovetail.version import __version__

    root = Path(dovetail.__file__).resolve().parents[2]
    is_checkout = (root / "pyproject.toml").is_file() and (root / "core" / "dovetail").is_dir()
    found = {"version": __version__, "installed": _install_kind(is_checkout)}
    return found | ({"commit": _commit(root)} if is_checkout else {})


def _install_kind(is_checkout: bool) -> str:
    try:
        distribution = metadata.distribution("dovetail-llm")
    except metadata.PackageNotFoundError:
        return "source checkout, not installed" if is_checkout else "copied files, not installed"
    if is_checkout:
        return "editable install of a checkout"
    return f"wheel, by {(distribution.read_text('INSTALLER') or 'unknown').strip()}"


def _commit(root: Path) -> str:
    try:
        commit = _output(["git", "-C", str(root), "rev-parse", "--short=12", "HEAD"], LIMIT_S)
        changed = _output(["git", "-C", str(root), "status", "--porcelain", "-uno"], LIMIT_S)
    except (OSError, subprocess.SubprocessError):
        return "unknown"
    return commit.strip() + (" with changes" if changed.strip() else "")


def _packages() -> dict[str, str]:
    found = {name: _version(name) or "MISSING" for name in PACKAGES}
    return found | {name: _version(name) or "absent (optional)" for name in OPTIONAL}


def _version(name: str) -> str | None:
    try:
        return metadata.version(name)
    except metadata.PackageNotFoundError:
        return None


def _torch() -> dict[str, Any]:
    facts = _json_of(_TORCH, TORCH_LIMIT_S)
    build = " ".join(facts.pop("build", ()))
    return facts | dict(_BUILD.findall(build))


def _native() -> dict[str, Any]:
    return _json_of(_NATIVE, TORCH_LIMIT_S)


def _json_of(code: str, limit_s: float) -> dict[str, Any]:
    """Return the JSON that a new interpreter prints, or how it failed."""
    paths = os.pathsep.join(path for path in sys.path if path)
    try:
        output = _output([sys.executable, "-c", code], limit_s, PYTHONPATH=paths)
        answer: dict[str, Any] = json_value(output.strip().splitlines()[-1])
    except (OSError, subprocess.SubprocessError, ValueError, IndexError) as error:
        return {"fault": str(error)}
    return answer


def _output(command: list[str], limit_s: float, **environ: str) -> str:
    """Return a command's output. Raises: OSError, subprocess.SubprocessError."""
    done = subprocess.run(
        command,
        capture_output=True,
        text=True,
        errors="replace",
        timeout=limit_s,
        stdin=subprocess.DEVNULL,
        env=os.environ | environ,
    )
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no output").splitlines()[-1]
        raise subprocess.SubprocessError(f"it ended with status {done.returncode}: {last}")
    return done.stdout


def _plugins() -> dict[str, Any]:
    from dovetail import registry

    facts: dict[str, Any] = {}
    entries = [entry for kind in registry.KINDS for entry in registry.entries(kind)]
    for entry in (*entries, *registry.admin.hook_entries()):
        if not entry.is_own:
            label = f"{entry.distribution} {_version(entry.distribution) or ''}".strip()
            facts.setdefault(label, []).append(f"{entry.kind}:{entry.name}")
    return facts


def _environment() -> dict[str, str]:
    from dovetail.config.config import flags
    from dovetail.config.parse.environment import variable_of
    from dovetail.config.parse.foreign_variables import foreign_variables

    secrets = {variable_of(flag): flag.meta.secret for flag in flags().values()}
    return {
        name: masked_variable(name, _short(text), is_secret=secrets.get(name))
        for name, text in sorted(os.environ.items())
        if name in foreign_variables() or _VARIABLES.fullmatch(name)
    }


def _plugin_facts() -> dict[str, Any]:
    from dovetail import registry
    from dovetail.config.report.secrets import masked
    from dovetail.registry import hooks

    if not registry.admin.hook_entries():
        return {}
    answers = hooks.tell(hooks.environment_facts, {})
    facts: dict[str, Any] = masked({k: v for answer in answers for k, v in dict(answer).items()})
    return facts


def _short(path: str) -> str:
    """Return the text with ~ for the home folder, which contains a user name."""
    home = str(Path.home())
    return path if home == "/" else re.sub(rf"(?<![\w/]){re.escape(home)}(?![\w.-])", "~", path)


SECTIONS: dict[str, Callable[[], Any]] = {
    "system": _system,
    "processor": _processor,
    "memory": _memory,
    "gpus": _gpus,
    "dovetail": _dovetail,
    "packages": _packages,
    "torch": _torch,
    "native kernels": _native,
    "plugins of other packages": _plugins,
    "reported by plugins": _plugin_facts,
    "environment": _environment,
}
"""Heading -> the function that collects its facts."""
