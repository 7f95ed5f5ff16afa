"""Promises about the source that no unit test would notice being broken."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PYTHON = [
    path
    for part in ("core", "plugins", "kernels", "contrib", "examples", "benchmarks")
    for path in (ROOT / part).rglob("*.py")
]
BANNED_IMPORTS = re.compile(
    r"^\s*(?:import|from)\s+(pickle|cloudpickle|dill|marshal|multiprocessing)\b", re.MULTILINE
)
SILENT = re.compile(r"except[^\n]*:\s*\n?\s*pass\b")
STARTS_A_CHILD = re.compile(r"\b(Popen\(|create_subprocess_|os\.fork\(|posix_spawn)")


def test_sources_are_found() -> None:
    assert len(PYTHON) > 100


def test_no_pickle_and_no_fork() -> None:
    assert [p.name for p in PYTHON if BANNED_IMPORTS.search(p.read_text())] == []


def test_children_are_started_in_one_place() -> None:
    """The one that compiles forks too, to be able to kill what takes too long."""
    product = [p for p in PYTHON if p.relative_to(ROOT).parts[0] in ("core", "plugins", "kernels")]
    found = {
        p.relative_to(ROOT).as_posix() for p in product if STARTS_A_CHILD.search(p.read_text())
    }
    assert {path for path in found if "/testing/" not in path} == {
        "core/dovetail/process.py", "core/dovetail/guided/compile_worker.py"
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
