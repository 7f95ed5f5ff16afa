"""Building the package: pip asks for the metadata without compiling, and is told what is compiled.

A stand-in compiles in no time; the real compiler's library is what all other tests run on.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest

from dovetail_kernels.cpu import recipe

ROOT = Path(__file__).resolve().parents[2]
SKIPPED = shutil.ignore_patterns(
    ".git", "__pycache__", "dist", "build", ".venv", "*_cache", "_lib", "tests", "docs"
)
COMPILER = """#!/bin/sh
[ "$1" = --version ] && echo stand-in 1 && exit
for word; do last="$word"; [ "$before" = -c ] && echo "$*" >> {log}; before="$word"; done
echo made > "$last"
"""


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Return a copy of the source tree without a library."""
    copy = tmp_path / "source"
    shutil.copytree(ROOT, copy, ignore=SKIPPED)
    return copy


@pytest.fixture
def log(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Set a stand-in for the compiler; return the file where its calls are noted."""
    made = tmp_path / "calls"
    command = tmp_path / "stand_in"
    command.write_text(COMPILER.format(log=made), encoding="utf-8")
    command.chmod(0o755)
    monkeypatch.setenv("CXX", str(command))
    monkeypatch.setenv("MAX_JOBS", "1")
    return made


def compiled(log: Path) -> list[str]:
    """Return the instruction sets of the compiler's calls, in order, each run of one once."""
    found = re.findall(r"-DDT_ISA=(\w+)", log.read_text(encoding="utf-8"))
    return [isa for i, isa in enumerate(found) if i == 0 or found[i - 1] != isa]


def clean() -> dict[str, str]:
    """Return the variables of this process without the path to this tree."""
    return {name: value for name, value in os.environ.items() if name != "PYTHONPATH"}


def pip(*words: str | Path, python: Path | None = None) -> str:
    """Run pip without a network, as loud as it gets, and return what it printed."""
    options = ["--no-deps", "--no-build-isolation", "--no-index", "-v"]
    where = [] if python is None else ["--python", str(python)]
    done = subprocess.run(
        [sys.executable, "-m", "pip", *where, *map(str, words), *options],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        check=False,
        env=clean() | {"PIP_DISABLE_PIP_VERSION_CHECK": "1"},
        cwd="/",
        timeout=300,
    )
    assert done.returncode == 0, done.stdout
    return done.stdout


@pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is a shell script")
def test_a_wheel_compiles_every_set_in_order_and_says_so(
    source: Path, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (source / ".gitignore").unlink()  # which a build from an sdist does not read
    told = pip("wheel", source, "-w", tmp_path / "wheels")
    sets = [*recipe.all_sets(os.uname().machine)]
    assert compiled(log) == sets
    lines = re.findall(r"compiling native kernels: (\w+) \((\d) of \d\), \d+ files", told)
    assert lines == [(isa, str(i)) for i, isa in enumerate(sets, start=1)]
    metadata, build = told.split("Running command Building wheel")
    assert "Running command Preparing metadata" in metadata
    assert "compiling" not in metadata
    assert "compiling" in build
    log.write_text("", encoding="utf-8")
    monkeypatch.setenv("DOVETAIL_WHEEL_SETS", "machine")
    assert "compiling" not in pip("wheel", source, "-w", tmp_path / "wheels")
    assert compiled(log) == []
    (wheel,) = (tmp_path / "wheels").glob("*.whl")
    names = zipfile.ZipFile(wheel).namelist()
    (library,) = [name for name in names if "/_lib/" in name]  # without its objects
    assert library.endswith(".so")


@pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is a shell script")
def test_an_editable_install_compiles_what_this_machine_runs(
    source: Path, log: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lowest = [*recipe.all_sets(os.uname().machine)][:2]
    described = "flags : fpu sse2 avx2 fma f16c\n"
    asked = source / "kernels" / "dovetail_kernels" / "cpu" / "recipe.py"
    text = asked.read_text(encoding="utf-8")
    (tmp_path / "cpuinfo").write_text(described, encoding="utf-8")
    asked.write_text(text.replace("/proc/cpuinfo", str(tmp_path / "cpuinfo")), encoding="utf-8")
    venv.create(tmp_path / "env", with_pip=False, symlinks=True)
    python = tmp_path / "env" / "bin" / "python"
    site = next((tmp_path / "env" / "lib").glob("python*/site-packages"))
    (site / "lent.pth").write_text(str(Path(pytest.__file__).parents[1]) + "\n", encoding="utf-8")
    told = pip("install", "-e", source, python=python)
    metadata, build = told.split("Running command Building editable")
    assert "compiling" not in metadata
    assert "compiling" in build
    assert compiled(log) == lowest
    (library,) = (source / "kernels/dovetail_kernels/cpu/_lib").glob("libdovetail_*.so")
    assert library.name in told
    code = "import dovetail_kernels; print(dovetail_kernels.__file__)"
    where = subprocess.run(
        [python, "-c", code], env=clean(), capture_output=True, text=True, check=True, cwd="/"
    ).stdout
    assert Path(where.strip()).is_relative_to(source)


def test_the_sets_of_a_machine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(recipe.platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(recipe, "CPUINFO", tmp_path / "cpuinfo")
    assert recipe.usable_sets() == tuple(recipe.ISA_FLAGS["x86_64"])  # nobody tells: all
    wide = "avx512f avx512bw avx512dq avx512vl avx512_vnni"
    for flags, sets in {
        "sse2": ("base",),
        "sse2 avx2": ("base",),
        "avx2 fma": ("base", "avx2"),
        f"fma {wide}": ("base",),
        f"avx2 fma {wide}": ("base", "avx2", "avx512"),
        f"avx2 fma {wide} avx512_bf16": ("base", "avx2", "avx512", "avx512bf16"),
        "avx2 fma avx512_bf16": ("base", "avx2"),
        "avx2 fma avx_vnni": ("base", "avx2", "avxvnni"),
        f"avx2 fma avx_vnni {wide}": ("base", "avx2", "avxvnni", "avx512"),
    }.items():
        recipe.CPUINFO.write_text(f"vendor : x\nflags\t\t: {flags}\n", encoding="utf-8")
        assert recipe.usable_sets() == sets
    monkeypatch.setattr(recipe.platform, "machine", lambda: "aarch64")
    recipe.CPUINFO.write_text("Features : fp asimd\n", encoding="utf-8")
    assert recipe.usable_sets() == ("neon",)


def test_a_tree_compiles_the_best_set_and_the_one_below(monkeypatch: pytest.MonkeyPatch) -> None:
    def compiled_for(usable: str, asked: str = "") -> str:
        monkeypatch.setenv(recipe.ISA_VARIABLE, asked)
        monkeypatch.setattr(recipe, "usable_sets", lambda: tuple(usable.split()))
        return " ".join(recipe.source_sets())

    everything = "base avx2 avx512 avx512bf16 amx"
    assert compiled_for(everything) == "avx2 avx512 avx512bf16 amx"
    assert compiled_for(everything, "none") == compiled_for(everything, "avx2")
    assert compiled_for(everything, "amx") == "avx2 avx512 avx512bf16 amx"
    assert compiled_for(everything, "base") == everything
    assert compiled_for("base avx2") == "base avx2"
    assert compiled_for("base avx2 avxvnni") == "base avx2 avxvnni"
    assert compiled_for("base avx2 avxvnni avx512") == "avx2 avx512"
    assert compiled_for("base avx2 avxvnni avx512", "avxvnni") == "avx2 avxvnni avx512"
    assert compiled_for("base avx2 avxvnni avx512", "base") == "base avx2 avx512"
    assert compiled_for("base") == "base"
    assert compiled_for("neon") == "neon"


def test_sets_of_a_wheel_and_of_the_tree_lie_side_by_side(log: Path, tmp_path: Path) -> None:
    folder = tmp_path / "_lib"
    told: list[str] = []
    usable = recipe.usable_sets()
    own = recipe.build(folder, sets=usable, tell=told.append)
    assert own is not None
    assert len(told) == len(usable)
    calls = log.read_text(encoding="utf-8")
    every = recipe.build(folder, tell=told.append)
    again = recipe.build(folder, sets=usable, tell=told.append)
    assert again == own and own.is_file() and every is not None and every.is_file()
    assert log.read_text(encoding="utf-8").startswith(calls)
    assert len(told) == len(recipe.all_sets(os.uname().machine))
