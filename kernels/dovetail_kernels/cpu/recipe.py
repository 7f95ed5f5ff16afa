"""Recipe: the C++ sources become one shared library, each source once per instruction set.

Run by the wheel's build hook, by an editable install and by a bare checkout; imports neither torch
nor dovetail. A wheel gets every set, a source tree what its machine uses (`source_sets`). The
library is named by a hash of sources, flags and compiler, so an unchanged tree compiles nothing.
Without a compiler `build` returns None and everything runs on torch.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import platform
import re
import shutil
import subprocess
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path

HERE = Path(__file__).resolve().parent
INCLUDES = (HERE, HERE.parent)
INCLUDE = re.compile(r'^#include "([^"]+)"', re.MULTILINE)
COMMON_FLAGS = [
    *("-O3", "-std=c++17", "-fPIC", "-fvisibility=hidden"),
    "-w",  # GCC's warnings about its own intrinsics take a sixth of the compile time
    *("-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics"),
    *("-fno-math-errno", "-ffp-contract=off"),  # no contraction of a product and a sum
]
LINK_FLAGS = ["-shared", "-nodefaultlibs", "-lpthread", "-lc", "-lm", "-lgcc"]
AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = [
    *("-mavx512f", "-mavx512bw", "-mavx512dq", "-mavx512vl", "-mavx512vnni"),
    "-mprefer-vector-width=512",
]
ISA_FLAGS: dict[str, dict[str, list[str]]] = {
    "x86_64": {
        "base": [],
        "avx2": AVX2,
        "avxvnni": [*AVX2, "-mavxvnni"],
        "avx512": [*AVX2, *AVX512],
        "avx512bf16": [*AVX2, *AVX512, "-mavx512bf16"],
        "amx": [*AVX2, *AVX512, "-mavx512bf16", "-mamx-tile", "-mamx-bf16", "-mamx-int8"],
    },
    "aarch64": {"neon": ["-march=armv8.2-a+fp16+dotprod"]},
}
BFLOAT16_ISAS = ("avx512bf16", "amx")
"""The sets that multiply pairs of bfloat16 faster than floats; only the first makes such pairs from
values in groups."""
ADDS = {"avxvnni": "__AVXVNNI__", "avx512bf16": "__AVX512BF16__", "amx": "__AMX_TILE__"}
"""Sets that only matter to sources with this word; the others serve it by the set before."""
NEEDS = {
    "avx2": ("avx2", "fma"),
    "avxvnni": ("avx_vnni",),
    "avx512": ("avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"),
    "avx512bf16": ("avx512_bf16",),
    "amx": ("amx_tile", "amx_bf16", "amx_int8"),
}
"""The system's names of the features of each set, without those of the sets that it extends."""
ISA_VARIABLE = "DOVETAIL_CPU_ISA"
CPUINFO = Path("/proc/cpuinfo")
HEADERS = ("immintrin.h", "math.h", "stdint.h", "string.h")
"""What nearly every source includes where registers are wide: a third of the time of most."""
HAS_HEADERS = ("avx2", "avx512")
GCC = "Free Software Foundation"
MANY_FILES = 20
"""From so many files on, reading HEADERS ahead costs less than it saves."""
MACHINES = {"AMD64": "x86_64", "arm64": "aarch64"}
BUILD_TIMEOUT_S = 600


Tell = Callable[[str], None]
"""Called with a line for each instruction set that is compiled."""


class BuildError(Exception):
    """The compiler refused a source; the text is its output."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Unit:
    """One compilation: a source, and the instruction set it is compiled for."""

    source: Path
    isa: str
    flags: tuple[str, ...]

    @property
    def label(self) -> str:
        """Return the name of its object files."""
        return f"{self.source.parent.name}.{self.source.stem}.{self.isa}"


def compiler() -> str | None:
    """Return the C++ compiler: $CXX, or the first of g++, clang++ and c++ there is."""
    setting = os.environ.get("CXX")
    if setting is not None:
        return setting if setting and shutil.which(setting.split()[0]) else None
    return next(
        (found for name in ("g++", "clang++", "c++") if (found := shutil.which(name))), None
    )


def all_sets(machine: str) -> dict[str, list[str]]:
    """Return the sets of a machine type with their flags, the lowest first; an unlisted type has
    only "base"."""
    return ISA_FLAGS.get(MACHINES.get(machine, machine), {"base": []})


def usable_sets() -> tuple[str, ...]:
    """Return the sets that this machine can run, lowest first; all of its type's if the system does
    not list its features."""
    sets = tuple(all_sets(platform.machine()))
    try:
        text = CPUINFO.read_text(encoding="utf-8")
    except OSError:
        return sets
    line = re.search(r"^flags\s*:(.*)$", text, re.MULTILINE)
    if line is None:
        return sets
    has = frozenset(line.group(1).split())
    missing = [isa for isa in sets if not has.issuperset(NEEDS.get(isa, ()))]
    return tuple(isa for isa in sets if not any(extends(isa, one) for one in missing))


def extends(isa: str, other: str) -> bool:
    """Return whether an instruction set has all of another one, or is that one."""
    flags = {name: flags for sets in ISA_FLAGS.values() for name, flags in sets.items()}
    return set(flags[isa]) >= set(flags[other])


def source_sets() -> tuple[str, ...]:
    """Return the sets that a source tree compiles: the best that this machine can run and the one
    below it, or all from the one that DOVETAIL_CPU_ISA names. What ADDS to one does not count, and
    what the best does not extend is only there if it is named."""
    return _sets_for(os.environ.get(ISA_VARIABLE))


def _sets_for(forced: str | None) -> tuple[str, ...]:
    """Return the sets that a source tree compiles where DOVETAIL_CPU_ISA is `forced`."""
    sets = usable_sets()
    lowest = [isa for isa in sets if isa not in ADDS][-2:][0]
    if forced in sets:
        lowest = min(lowest, forced, key=sets.index)
    chosen = sets[sets.index(lowest) :]
    return tuple(isa for isa in chosen if isa == forced or extends(sets[-1], isa))


def units(machine: str, chosen: Sequence[str] | None = None) -> list[Unit]:
    """Return the units to compile for a machine type, set by set: the `chosen` ones, or all."""
    known = all_sets(machine)
    sets = {isa: flags for isa, flags in known.items() if chosen is None or isa in chosen}
    lowest = next(iter(known))
    once = ("chain.cpp", "dispatch.cpp", "pool.cpp", "program.cpp")
    shared = [Unit(source=HERE / name, isa=lowest, flags=()) for name in once]
    ops = [HERE / "probe.cpp", *sorted(HERE.parent.glob("*/cpu*.cpp"))]
    return shared + [
        Unit(source=source, isa=isa, flags=tuple(flags))
        for isa, flags in sets.items()
        for source in ops
        if isa not in ADDS or any(ADDS[isa] in _text(path) for path in _sources(source))
    ]


def build(
    folder: Path,
    *,
    command: str | None = None,
    machine: str | None = None,
    sets: Sequence[str] | None = None,
    tell: Tell | None = None,
) -> Path | None:
    """Compile what has changed and return the library in `folder`, or None without a compiler.

    `sets` are the instruction sets that it shall have (None: all of the machine type). Several
    processes may call it concurrently: one compiles, the others wait for it.
    Raises: BuildError with the compiler's message.
    """
    command = command or compiler()
    if command is None:
        return None
    _text.cache_clear()
    _included.cache_clear()
    _sources.cache_clear()
    machine = machine or platform.machine()
    base = _digest([command, _version(command), *COMMON_FLAGS, *LINK_FLAGS])
    known = {unit: f"{unit.label}.{_unit_digest(unit, base)}.o" for unit in units(machine)}
    names = {unit: known[unit] for unit in units(machine, sets)}
    library = folder / _library_name(names.values())
    if library.is_file():
        return library
    folder.mkdir(parents=True, exist_ok=True)
    with _locked(folder / "lock"):
        if not library.is_file():
            _make(names, command.split(), folder / "objects", library, tell)
            _drop_old(folder, known, machine)
    return library


def _library_name(objects: Iterable[str]) -> str:
    return f"libdovetail_{_digest(objects)}.so"


def _drop_old(folder: Path, known: dict[Unit, str], machine: str) -> None:
    """Delete objects and libraries of outdated sources, flags or compilers."""
    usable = usable_sets()
    chosen = [usable[i:] for i in range(len(usable))] + [_sets_for(isa) for isa in usable]
    groups = [units(machine), *(units(machine, sets) for sets in chosen)]
    current = {_library_name(known[unit] for unit in group) for group in groups}
    current.update(known.values())
    for old in (*folder.glob("libdovetail_*.so"), *(folder / "objects").glob("*.o")):
        if old.name not in current:
            old.unlink(missing_ok=True)


def _make(
    names: dict[Unit, str],
    command: list[str],
    objects: Path,
    library: Path,
    tell: Tell | None = None,
) -> None:
    """Compile the units that have no object yet, one instruction set after the other, link all."""
    objects.mkdir(exist_ok=True)
    missing: dict[str, list[Unit]] = {}
    for unit, name in names.items():
        if not (objects / name).is_file():
            missing.setdefault(unit.isa, []).append(unit)
    jobs = max_jobs(os.environ.get("MAX_JOBS", ""))
    with ThreadPoolExecutor(max_workers=jobs) as pool:
        for i, (isa, group) in enumerate(missing.items(), start=1):
            if tell is not None:
                tell(
                    f"compiling native kernels: {isa} ({i} of {len(missing)}), {len(group)} files, "
                    f"{min(jobs, len(group))} at a time"
                )
            group.sort(key=lambda unit: -unit.source.stat().st_size)
            with _headers(isa, group, command, objects) as ahead:
                compile_one = partial(_compile, command=[*command, *ahead])
                list(pool.map(compile_one, group, [objects / names[unit] for unit in group]))
    output = objects / library.name
    _run(
        [
            *command,
            *(str(objects / name) for name in names.values()),
            *LINK_FLAGS,
            "-o",
            str(output),
        ]
    )
    output.replace(library)


@contextmanager
def _headers(
    isa: str, group: Sequence[Unit], command: list[str], folder: Path
) -> Iterator[list[str]]:
    """Have HEADERS read ahead inside a with block; yield the flags that use them. Objects stay the
    same. Only for GCC, and sets that have the first header."""
    if isa not in HAS_HEADERS or len(group) < MANY_FILES or GCC not in _version(" ".join(command)):
        yield []
        return
    header = folder / f"headers.{isa}.{os.getpid()}.h"
    header.write_text("".join(f"#include <{name}>\n" for name in HEADERS))
    read = header.with_name(header.name + ".gch")
    try:
        _run([*command, *_flags(group[-1]), "-x", "c++-header", str(header), "-o", str(read)])
        yield ["-include", str(header)]
    finally:
        for path in (header, read):
            path.unlink(missing_ok=True)


def max_jobs(setting: str) -> int:
    """Return how many files are compiled at once: by default as many as there are processors."""
    cores = os.cpu_count() or 1
    return min(int(setting), cores) if setting.isdecimal() and int(setting) else cores


def _flags(unit: Unit) -> list[str]:
    return [*COMMON_FLAGS, *unit.flags, f"-DDT_ISA={unit.isa}", *(f"-I{p}" for p in INCLUDES)]


def _compile(unit: Unit, target: Path, command: list[str]) -> None:
    temporary = target.with_suffix(f".{os.getpid()}.tmp")
    _run([*command, *_flags(unit), "-c", str(unit.source), "-o", str(temporary)])
    temporary.replace(target)


def _run(command: list[str]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, timeout=BUILD_TIMEOUT_S)
    if done.returncode:
        raise BuildError(f"{' '.join(command)}\n{done.stderr[-4000:]}")


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Hold a file lock inside a with block; it goes with the process that holds it."""
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _version(command: str) -> str:
    call = [*command.split(), "--version"]
    return subprocess.run(call, capture_output=True, text=True, timeout=60).stdout


def _unit_digest(unit: Unit, base: str) -> str:
    """Return a name for everything an object depends on: source, headers, flags, compiler."""
    parts = [base, unit.isa, *unit.flags]
    return _digest([*parts, *(_text(path) for path in _sources(unit.source))])


@cache
def _sources(source: Path) -> tuple[Path, ...]:
    """Return a source and all of our headers that it includes, directly or not."""
    sources: dict[Path, None] = {}
    waiting = [source]
    while waiting:
        path = waiting.pop()
        if path not in sources:
            sources[path] = None
            waiting += _included(path)
    return tuple(sources)


@cache
def _included(path: Path) -> list[Path]:
    names = INCLUDE.findall(_text(path))
    return [folder / n for n in names for folder in INCLUDES if (folder / n).is_file()]


@cache
def _text(path: Path) -> str:
    """Return a source's text, read once in a build: a start asks whether anything has changed."""
    return path.read_text()


def _digest(parts: Iterable[str]) -> str:
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]


if __name__ == "__main__":  # as an editable install does, which then finds it made
    build(HERE / "_lib", sets=source_sets(), tell=print)
