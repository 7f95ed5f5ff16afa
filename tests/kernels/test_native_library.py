"""The native library: every instruction set, the build, the cross build, no compiler at all."""

from __future__ import annotations

import importlib.util
import os
import shutil
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from dovetail_kernels.cpu import recipe
from dovetail_kernels.cpu.library import ISA_VARIABLE, Library, library, missing_reason
from dovetail_kernels.gemm.cases import make_weight
from dovetail_kernels.gemm.native import Packed

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = os.pathsep.join([str(ROOT / "kernels"), str(ROOT / "tests")])


def run(*command: str, **variables: str) -> subprocess.CompletedProcess[str]:
    # Two threads each of torch and of ours, beside other tests: who waits sleeps.
    threads = {"OMP_NUM_THREADS": "2", "OMP_WAIT_POLICY": "PASSIVE"}
    env = os.environ | {"PYTHONPATH": FOLDERS} | threads | variables
    return subprocess.run(
        [sys.executable, *command], env=env, capture_output=True, text=True, timeout=300
    )


@pytest.mark.skipif(library() is None, reason=missing_reason() or "")
def test_every_instruction_set_passes_the_cases() -> None:
    done = run(str(ROOT / "tests" / "support" / "instruction_sets.py"))
    assert done.returncode == 0, done.stdout[-2000:] + done.stderr[-2000:]
    native = library()
    assert native is not None
    assert [line.split(":")[0] for line in done.stdout.splitlines()] == native.isas()


def test_panels_are_as_wide_as_it_says() -> None:
    native = library()
    if native is None:
        pytest.skip(str(missing_reason()))
    told = {}
    for isa in native.isas():
        source = Library(native.path, isa)
        packed = Packed(make_weight("int8", 24, 16), source=source)
        assert packed.scales is not None
        told[isa] = source.panel_outputs()
        assert packed.scales.shape[-1] == told[isa], isa
    assert len(set(told.values())) == len(told) - len(told.keys() & set(recipe.ADDS)), (
        "all the same"
    )


def test_a_set_this_machine_lacks_is_named() -> None:
    code = "from dovetail_kernels.cpu.library import missing_reason; print(missing_reason())"
    assert "sse9: this machine can run base" in run("-c", code, **{ISA_VARIABLE: "sse9"}).stdout


NO_COMPILER = "the native library is not there: no C++ compiler"


@pytest.mark.parametrize(
    ("variables", "reason"),
    [
        ({"CXX": ""}, NO_COMPILER),
        ({"CXX": "no-such-compiler"}, NO_COMPILER),
        ({ISA_VARIABLE: "none"}, "the native library is not wanted: DOVETAIL_CPU_ISA=none"),
    ],
)
def test_without_the_library_everything_runs_on_torch(
    variables: dict[str, str], reason: str
) -> None:
    code = (
        "import torch; from dovetail_kernels.cpu.library import library, missing_reason;"
        "from dovetail_kernels.gemm.cases import make_weight;"
        "from dovetail_kernels.gemm.matrix import Matrix;"
        "weight = make_weight('int8', 8, 16);"
        "matrix = Matrix(weight, device='cpu', dtype=torch.float32);"
        "print(library(), missing_reason(), matrix.multiply(torch.ones(1, 16)).shape)"
    )
    told = run("-c", code, **variables).stdout
    assert told.startswith(f"None {reason}")
    assert "[1, 8]" in told


@pytest.mark.skipif(library() is None, reason=missing_reason() or "")
def test_an_unchanged_tree_compiles_nothing(tmp_path: Path) -> None:
    native = library()
    assert native is not None
    command = tmp_path / "refuses"
    before = native.path.stat().st_mtime_ns
    assert recipe.build(native.path.parent, sets=recipe.source_sets()) == native.path
    assert native.path.stat().st_mtime_ns == before
    command.write_text("#!/bin/sh\necho nothing to see >&2\n[ $1 = --version ]\n")
    command.chmod(0o755)
    with pytest.raises(recipe.BuildError, match="nothing to see"):
        recipe.build(tmp_path / "lib", command=str(command))


def cross_command() -> list[str] | None:
    """Return a C++ compiler for 64-bit Arm Linux, and how it names that machine's parts."""
    if shutil.which("aarch64-linux-gnu-g++"):
        return ["aarch64-linux-gnu-g++", *recipe.ISA_FLAGS["aarch64"]["neon"]]
    if importlib.util.find_spec("ziglang"):
        zig = [sys.executable, "-m", "ziglang", "c++", "-target", "aarch64-linux-gnu"]
        return [*zig, "-mcpu=generic+v8_2a+fullfp16+dotprod"]
    return None


TEMPLATES = ("gated_delta.", "gemm.", "low_rank.", "paged_attention.", "short_conv.", "ssd.")
"""Files of so many templates that Clang's back end takes seconds. They have no Arm assembly, which
nothing before the back end reads."""
FRONT_END = ["-Xclang", "-disable-llvm-passes", "-emit-llvm"]
"""Ends compiling where types, intrinsics and the features they need have been checked."""


def flags_of(unit: recipe.Unit) -> list[str]:
    # Whether it compiles is asked, not how fast it is: to optimise takes most of the time.
    flags = [flag for flag in recipe.COMMON_FLAGS if flag != "-w"]
    return [*flags, "-O0", f"-DDT_ISA={unit.isa}", "-Wall", "-Wextra", "-Werror"]


@pytest.fixture(scope="module")
def read_ahead(tmp_path_factory: pytest.TempPathFactory) -> list[str]:
    """Return flags with which Clang has read the header that takes most of its time; of another
    compiler none."""
    command = cross_command()
    if command is None or "ziglang" not in command:
        return []
    folder = tmp_path_factory.mktemp("headers")
    (folder / "all.h").write_text("#include <arm_neon.h>\n")
    flags = [*flags_of(recipe.units("aarch64")[0]), "-x", "c++-header"]
    made = str(folder / "all.pch")
    subprocess.run([*command, *flags, str(folder / "all.h"), "-o", made], check=True, timeout=300)
    return ["-include-pch", made]


@pytest.mark.skipif(cross_command() is None, reason="neither an Arm cross compiler nor ziglang")
@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("unit", recipe.units("aarch64"), ids=lambda unit: unit.label)
def test_arm_sources_compile(unit: recipe.Unit, read_ahead: list[str], tmp_path: Path) -> None:
    command = cross_command()
    assert command is not None
    flags = [*flags_of(unit), *read_ahead]
    if "ziglang" in command and unit.label.startswith(TEMPLATES):
        flags += FRONT_END
    includes = [f"-I{folder}" for folder in recipe.INCLUDES]
    target = str(tmp_path / "unit.o")
    done = subprocess.run(
        [*command, *flags, *includes, "-c", str(unit.source), "-o", target],
        capture_output=True,
        text=True,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr[-3000:]


def test_so_many_files_are_compiled_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found, most = [], os.cpu_count() or 1

    class Pool(ThreadPoolExecutor):
        def __init__(self, max_workers: int) -> None:
            found.append(max_workers)
            super().__init__(max_workers)

    monkeypatch.setattr(recipe, "ThreadPoolExecutor", Pool)
    monkeypatch.setattr(recipe, "_run", lambda words: Path(words[-1]).touch())
    for text in ("", "0", "all", "1", "100000"):
        monkeypatch.setenv("MAX_JOBS", text)
        recipe._make({}, [], tmp_path / "objects", tmp_path / "made.so")
    assert found == [most, most, most, 1, most]


@pytest.mark.parametrize(("version", "count"), [(recipe.GCC, 2), ("clang version 19", 0)])
def test_headers_are_read_ahead_for_gcc_and_left_nowhere(
    version: str, count: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(recipe, "_run", lambda words: Path(words[-1]).touch())
    monkeypatch.setattr(recipe, "_version", lambda command: version)
    units = recipe.units("x86_64", ["avx512"])[-recipe.MANY_FILES :]
    for group, files in ((units, count), (units[1:], 0)):
        with recipe._headers("avx512", group, ["c++"], tmp_path) as flags:
            assert len(flags) == len(list(tmp_path.iterdir())) == files
        assert list(tmp_path.iterdir()) == []
