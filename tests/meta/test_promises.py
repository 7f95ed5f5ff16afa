"""Promises about the source that no unit test would notice being broken."""

from __future__ import annotations

import ast
import re
from pathlib import Path

import pytest

from support.parsed import nodes_of

ROOT = Path(__file__).resolve().parents[2]
PYTHON = [
    path
    for part in ("core", "plugins", "kernels", "contrib", "examples", "benchmarks")
    for path in (ROOT / part).rglob("*.py")
]
BANNED_MODULES = {"pickle", "cloudpickle", "dill", "marshal", "multiprocessing"}
FORKING_NAMES = {"fork", "forkpty", "ProcessPoolExecutor", "preexec_fn"}
"""What starts a process that inherits this one's memory, threads and locks."""
MAY_FORK = {
    "core/dovetail/structured_output/compile_worker.py": "a child per constraint, killed in time; "
    "the process that forks has one thread and has run no parallel region",
    "plugins/dovetail_testing/isolated_import.py": "torch is imported once; "
    "no parallel region runs before",
    "benchmarks/cache_faults.py": "its kernels have one thread",
}
"""The files that may fork, and why that is safe there. docs/explanation/processes.md says so."""
SILENT = re.compile(r"except[^\n]*:\s*\n?\s*pass\b")
STARTS_A_CHILD = re.compile(r"\b(Popen\(|create_subprocess_|os\.fork\(|posix_spawn)")


def test_sources_are_found() -> None:
    assert len(PYTHON) > 100


def _has_one(source: str, words: set[str]) -> bool:
    return any(word in source for word in words)


def banned_imports(source: str) -> set[str]:
    """Return the banned modules that a source imports, from within packages too."""
    found: set[str] = set()
    for node in nodes_of(source) if _has_one(source, BANNED_MODULES) else ():
        names: list[str] = []
        if isinstance(node, ast.Import):
            names = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom) and not node.level:
            names = [f"{node.module}.{alias.name}" for alias in node.names]
        elif isinstance(node, ast.Attribute):
            names = [node.attr]
        found.update(*(BANNED_MODULES & set(name.split(".")) for name in names))
    return found


def forks(source: str) -> set[str]:
    """Return the names by which a source forks: functions, pools, arguments."""
    found: set[str] = set()
    for node in nodes_of(source) if _has_one(source, FORKING_NAMES) else ():
        if isinstance(node, ast.Attribute):
            found.add(node.attr)
        elif isinstance(node, ast.Name):
            found.add(node.id)
        elif isinstance(node, ast.alias):
            found.add(node.name)
        elif isinstance(node, ast.keyword) and node.arg:
            found.add(node.arg)
    return found & FORKING_NAMES


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from multiprocessing import get_context",
        "import torch.multiprocessing as mp",
        "from torch import multiprocessing",
        "import torch\ntorch.multiprocessing.spawn(f)",
    ],
)
def test_the_search_finds_imports(source: str) -> None:
    assert banned_imports(source)
    assert not banned_imports("import torch\nx = 'pickle'")


@pytest.mark.parametrize(
    "source",
    [
        "import os\nos.fork()",
        "from os import fork",
        "import pty\npty.fork()",
        "from concurrent.futures import ProcessPoolExecutor",
        "Popen(command, preexec_fn=f)",
    ],
)
def test_the_search_finds_forks(source: str) -> None:
    assert forks(source)
    assert not forks("'os.fork()'")


def test_no_pickle_and_no_multiprocessing() -> None:
    found = {p.relative_to(ROOT).as_posix(): banned_imports(p.read_text()) for p in PYTHON}
    assert {path: names for path, names in found.items() if names} == {}


def test_only_named_files_fork() -> None:
    found = {p.relative_to(ROOT).as_posix() for p in PYTHON if forks(p.read_text())}
    assert found == set(MAY_FORK)
    page = (ROOT / "docs" / "decisions" / "0003-no-pickle-no-fork.md").read_text()
    named = [path.removeprefix("core/dovetail/").removeprefix("plugins/") for path in MAY_FORK]
    assert [path for path in named if path not in page] == []


def test_children_are_started_in_one_place() -> None:
    """The one that compiles forks too, to be able to kill what takes too long; the guard of a Ray
    cluster outlives its parent by a moment, to kill what that has left."""
    product = [p for p in PYTHON if p.relative_to(ROOT).parts[0] in ("core", "plugins", "kernels")]
    found = {
        p.relative_to(ROOT).as_posix() for p in product if STARTS_A_CHILD.search(p.read_text())
    }
    assert {path for path in found if "/dovetail_testing/" not in path} == {
        "core/dovetail/processes/process.py", "core/dovetail/structured_output/compile_worker.py",
        "plugins/dovetail_plugins/executors/_ray_guard.py",
    }  # fmt: skip


def test_no_silent_handler() -> None:
    assert [p.relative_to(ROOT).as_posix() for p in PYTHON if SILENT.search(p.read_text())] == []


def test_torch_load_is_weights_only() -> None:
    for path in PYTHON:
        for call in re.findall(r"torch\.load\([^)]*\)", path.read_text()):
            assert "weights_only=True" in call, f"{path}: {call}"


def test_no_hasattr_in_the_product() -> None:
    product = [p for p in PYTHON if p.relative_to(ROOT).parts[0] in ("core", "plugins", "kernels")]
    assert [p.relative_to(ROOT).as_posix() for p in product if "hasattr(" in p.read_text()] == []


@pytest.mark.parametrize("name", ["torchvision", "torchaudio", "torchcodec"])
def test_breaking_companions_of_cpu_torch_are_absent(name: str) -> None:
    """Their PyPI wheels are CUDA builds that break transformers beside a CPU torch."""
    from importlib.util import find_spec

    import torch

    if torch.version.cuda is None:
        assert find_spec(name) is None
