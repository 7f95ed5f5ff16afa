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


def test_sources_are_found() -> None:
    assert len(PYTHON) > 100


def test_no_pickle_and_no_fork() -> None:
    assert [p.name for p in PYTHON if BANNED_IMPORTS.search(p.read_text())] == []


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
