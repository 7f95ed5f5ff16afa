"""Recipe: the C++ sources become one shared library, each source once per instruction set.

Run by the wheel's build hook, by an editable install and by a bare checkout; imports neither torch
nor dovetail. The library is named by a hash of sources, flags and compiler, so an unchanged tree
compiles nothing. Without a compiler `build` returns None and everything runs on torch.
"""

from __future__ import annotations

import hashlib
import os
import platform
import shutil
import subprocess
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

HERE = Path(__file__).resolve().parent
COMMON_FLAGS = (
    "-O3 -std=c++17 -fPIC -fvisibility=hidden -fno-exceptions -fno-rtti -fno-threadsafe-statics "
    "-fno-math-errno -ffp-contract=off -Wall -Wextra"
).split()
LINK_FLAGS = "-shared -nodefaultlibs -lpthread -lc -lm -lgcc".split()
AVX2 = "-mavx2 -mfma -mf16c".split()
AVX512 = "-mavx512f -mavx512bw -mavx512dq -mavx512vl -mavx512vnni -mprefer-vector-width=512".split()
ISA_FLAGS: dict[str, dict[str, list[str]]] = {
    "x86_64": {"base": [], "avx2": AVX2, "avx512": [*AVX2, *AVX512]},
    "aarch64": {"neon": ["-march=armv8.2-a+fp16+dotprod"]},
}
MACHINES = {"AMD64": "x86_64", "arm64": "aarch64"}
BUILD_TIMEOUT_S = 600


class BuildError(Exception):
    """The compiler refused a source; the text is what it said."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One compilation: a source, and the instruction set it is compiled for."""

    source: Path
    isa: str
    flags: tuple[str, ...]

    @property
    def object_name(self) -> str:
        """Return the object file's name."""
        return f"{self.source.parent.name}.{self.source.stem}.{self.isa}.o"


def compiler() -> str | None:
    """Return the C++ compiler: $CXX, or the first of g++, clang++ and c++ there is."""
    asked = os.environ.get("CXX")
    if asked is not None:
        return asked if asked and shutil.which(asked.split()[0]) else None
    return next(
        (found for name in ("g++", "clang++", "c++") if (found := shutil.which(name))), None
    )


def units(machine: str) -> list[Unit]:
    """Return what is compiled for a machine type; one that is not listed gets "base" alone."""
    sets = ISA_FLAGS.get(machine, {"base": []})
    lowest = next(iter(sets))
    shared = [
        Unit(source=HERE / name, isa=lowest, flags=()) for name in ("dispatch.cpp", "pool.cpp")
    ]
    ops = [HERE / "probe.cpp", *sorted(HERE.parent.glob("*/cpu*.cpp"))]
    return shared + [
        Unit(source=source, isa=isa, flags=tuple(flags))
        for source in ops
        for isa, flags in sets.items()
    ]


def build(folder: Path, *, command: str | None = None, machine: str | None = None) -> Path | None:
    """Compile what has changed and return the library in `folder`, or None without a compiler.

    Raises: BuildError with the compiler's words.
    """
    command = command or compiler()
    if command is None:
        return None
    machine = machine or platform.machine()
    wanted = units(MACHINES.get(machine, machine))
    library = folder / f"libdovetail_{_digest(wanted, command)}.so"
    if library.is_file():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    objects = folder / f"objects.{os.getpid()}"
    objects.mkdir(exist_ok=True)
    try:
        _compile(wanted, command.split(), objects, library)
    finally:
        shutil.rmtree(objects, ignore_errors=True)
    for old in folder.glob("libdovetail_*.so"):
        if old != library:
            old.unlink(missing_ok=True)
    return library


def _compile(wanted: list[Unit], command: list[str], objects: Path, library: Path) -> None:
    with ThreadPoolExecutor(max_workers=os.cpu_count() or 1) as pool:
        list(pool.map(lambda unit: _compile_one(unit, command, objects), wanted))
    made = objects / library.name
    names = [str(objects / unit.object_name) for unit in wanted]
    _run([*command, *names, *LINK_FLAGS, "-o", str(made)])
    os.replace(made, library)


def _compile_one(unit: Unit, command: list[str], objects: Path) -> None:
    target = objects / unit.object_name
    flags = [*COMMON_FLAGS, *unit.flags, f"-DDT_ISA={unit.isa}", f"-I{HERE}", f"-I{HERE.parent}"]
    _run([*command, *flags, "-c", str(unit.source), "-o", str(target)])


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S)
    if done.returncode:
        raise BuildError(f"{' '.join(command)}\n{done.stderr[-4000:]}")


def _digest(wanted: list[Unit], command: str) -> str:
    """Return a name for everything the library depends on."""
    version = subprocess.run(
        [*command.split(), "--version"], capture_output=True, text=True, timeout=60
    ).stdout
    digest = hashlib.sha256(" ".join([command, version, *COMMON_FLAGS, *LINK_FLAGS]).encode())
    headers = sorted(HERE.parent.glob("*/*.h"))
    for path in [*headers, *(unit.source for unit in wanted)]:
        digest.update(path.read_bytes())
    for unit in wanted:
        digest.update(f"{unit.source.name} {unit.isa} {unit.flags}".encode())
    return digest.hexdigest()[:16]
