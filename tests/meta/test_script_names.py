"""No script hides an installed package from those beside it; pages name scripts that exist.

A script that is run by its path has its folder first on sys.path: a file named `gguf.py` there is
what `import gguf` finds, in every script of that folder.
"""

from __future__ import annotations

import re
import sys
from functools import cache
from importlib.metadata import packages_distributions
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
GUARD = 'if __name__ == "__main__":'
PEERS = {
    "ctranslate2", "gguf", "llama_cpp", "nncf", "openvino", "openvino_genai", "openvino_tokenizers",
    "optimum", "psutil", "tokenizers", "torch", "transformers", "vllm", "xllamacpp",
}  # fmt: skip
"""Imported by scripts of benchmarks/peers in venvs of their own."""
FOLDERS = sorted(
    {
        path.parent
        for part in ("benchmarks", "docs", "examples", "contrib", "tests")
        for path in (ROOT / part).rglob("*.py")
        if GUARD in path.read_text(encoding="utf-8") and "build" not in path.parts
    }
)
PAGES = sorted(path for part in ("docs", "benchmarks") for path in (ROOT / part).rglob("*.md"))


def hidden(folder: Path, known: set[str]) -> set[str]:
    """Return the known top-level modules that a file or a package of the folder hides."""
    files = {path.stem for path in folder.glob("*.py")}
    packages = {path.parent.name for path in folder.glob("*/__init__.py")}
    return (files | packages) & known


@cache
def known_modules() -> set[str]:
    """Return what can be imported here or in a peer's venv."""
    return set(packages_distributions()) | set(sys.stdlib_module_names) | PEERS


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_no_script_hides_an_installed_module(folder: Path) -> None:
    assert not hidden(folder, known_modules())


def test_hidden_modules_are_seen(tmp_path: Path) -> None:
    (tmp_path / "gguf.py").touch()
    (tmp_path / "run.py").write_text(GUARD)
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    (tmp_path / "vllm").mkdir()  # without __init__.py it stands behind any installed package
    assert hidden(tmp_path, known_modules()) == {"gguf", "torch"}
    assert {path.relative_to(ROOT).as_posix() for path in FOLDERS} >= {
        "benchmarks",
        "benchmarks/peers",
    }


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_scripts_named_on_a_page_exist(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    named = {
        name.replace(".", "/") + ".py" for name in re.findall(r"-m (benchmarks[\w.]*\w)", text)
    }
    named |= set(re.findall(r"\bbenchmarks/[\w/]+\.py\b", text))
    assert not [name for name in sorted(named) if not (ROOT / name).exists()]


def test_the_makefile_names_tests_that_exist() -> None:
    text = (ROOT / "Makefile").read_text(encoding="utf-8")
    listed = re.findall(r"(?<![\w/])((?:core|e2e|kernels|plugins)/(?:\w+/)*test_\w+\.py)", text)
    assert len(listed) > 15
    assert [path for path in listed if not (ROOT / "tests" / path).exists()] == []
