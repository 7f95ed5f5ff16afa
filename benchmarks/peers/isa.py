"""The instruction sets of the machine, and how a run is limited to AVX2 on one that has more.

Linux on x86 (/proc/cpuinfo). Variables hold the engines that read one; those that ask the processor
themselves are held by avx2_only.c, where the machine can trap cpuid.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

SOURCE = Path(__file__).with_name("avx2_only.c")
VARIABLES = {
    "DOVETAIL_CPU_ISA": "avx2",
    "ATEN_CPU_CAPABILITY": "avx2",
    "ONEDNN_MAX_CPU_ISA": "AVX2",
    "MKL_ENABLE_INSTRUCTIONS": "AVX2",
    "CT2_FORCE_CPU_ISA": "AVX2",
}
TOLD = (
    "avx2", "fma", "f16c", "avx_vnni", "avx512f", "avx512vl", "avx512_vnni", "avx512_bf16",
    "avx512_fp16", "amx_int8", "amx_bf16",
)  # fmt: skip
"""The flags of /proc/cpuinfo that decide which products an engine has."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Processor:
    """What /proc/cpuinfo says of the first core."""

    name: str
    flags: frozenset[str]

    @property
    def sets(self) -> list[str]:
        """Return the instruction sets that matter here, narrow to wide."""
        return [flag for flag in TOLD if flag in self.flags]

    @property
    def has_more_than_avx2(self) -> bool:
        """Return whether an engine could choose something that AVX2 has not."""
        return any(flag.startswith(("avx512", "avx_vnni", "avx10", "amx")) for flag in self.flags)

    @property
    def has_avx512(self) -> bool:
        """Return whether AVX-512 is there at all."""
        return "avx512f" in self.flags


def processor(cpuinfo: str | None = None) -> Processor:
    """Return this machine's processor."""
    text = Path("/proc/cpuinfo").read_text() if cpuinfo is None else cpuinfo
    entries = (line.partition(":") for line in text.split("\n\n", 1)[0].splitlines())
    found = {name.strip(): value.strip() for name, _, value in entries}
    return Processor(
        name=found.get("model name", "unknown"), flags=frozenset(found.get("flags", "").split())
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold:
    """How processes are kept from what lies above AVX2.

    `is_needed` is False where the machine has nothing above it, or nothing was asked for;
    `why_no_trap` says what stands against trapping cpuid, "" when it is trapped.
    """

    is_needed: bool = False
    environment: dict[str, str]
    why_no_trap: str = ""

    def __str__(self) -> str:
        if not self.is_needed:
            return "nothing (not asked for, or the machine has nothing above AVX2)"
        if self.why_no_trap:
            return f"AVX2, by variables alone: {self.why_no_trap}"
        return "AVX2, by variables and by answering cpuid without what lies above"


def hold_to_avx2(machine: Processor, folder: Path) -> Hold:
    """Return the environment that makes this machine compute as one with AVX2 alone.

    The library that traps cpuid is compiled into `folder`, and tried.
    """
    if not machine.has_more_than_avx2:
        return Hold(environment=dict(VARIABLES))
    library = (folder / "avx2_only.so").resolve()
    why = _why_no_trap(machine, library)
    others = os.environ.get("LD_PRELOAD", "")
    preload = {} if why else {"LD_PRELOAD": f"{library} {others}".strip()}
    return Hold(is_needed=True, environment=VARIABLES | preload, why_no_trap=why)


def _why_no_trap(machine: Processor, library: Path) -> str:
    """Compile the library and run a process under it; return "" when that works, else why not."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if "cpuid_fault" not in machine.flags:
        return "this processor cannot trap cpuid (no cpuid_fault in /proc/cpuinfo)"
    if compiler is None:
        return "no C compiler for avx2_only.c"
    command = [compiler, "-O2", "-shared", "-fPIC", "-o", str(library), str(SOURCE), "-ldl"]
    tries = (
        (command, dict(os.environ)),
        ([sys.executable, "-c", "pass"], os.environ | {"LD_PRELOAD": str(library)}),
    )
    for arguments, environment in tries:
        done = subprocess.run(
            arguments, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            return f"{arguments[0]} answered {done.returncode}: {done.stderr.strip()[-200:]}"
    return ""
