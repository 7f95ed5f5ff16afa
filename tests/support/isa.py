"""Runs a command as on a machine with a lower instruction set, as far as variables can hold it.

    python tests/support/isa.py avx2 COMMAND...    # or base
    python tests/support/isa.py lower COMMAND...   # for each such set below this machine's best
    python tests/support/isa.py next COMMAND...    # for the highest of those

Held are dovetail's kernels, torch with oneDNN and MKL, numpy with OpenBLAS, and the C library's
functions. A set that has no variables here (AVX-512's, Arm's) cannot be asked for.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import Any

from dovetail_kernels.cpu import recipe
from dovetail_kernels.cpu.library import library, missing_reason

HELD = {
    "avx2": {
        "DOVETAIL_CPU_ISA": "avx2",
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
    },
    "avxvnni": {
        "DOVETAIL_CPU_ISA": "avxvnni",
        "ATEN_CPU_CAPABILITY": "avx2",
        "ONEDNN_MAX_CPU_ISA": "AVX2_VNNI",
        "MKL_ENABLE_INSTRUCTIONS": "AVX2",
        "OPENBLAS_CORETYPE": "Haswell",
    },
    "base": {
        "DOVETAIL_CPU_ISA": "base",
        "ATEN_CPU_CAPABILITY": "default",
        "ONEDNN_MAX_CPU_ISA": "SSE41",
        "MKL_ENABLE_INSTRUCTIONS": "SSE4_2",
        "OPENBLAS_CORETYPE": "Nehalem",
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX2,-FMA",
    },
}
"""Instruction set -> the variables that hold a process to it, without numpy's (see `held`)."""
NUMPY_VARIABLE = "NPY_DISABLE_CPU_FEATURES"
NUMPY_KEEPS = ("AVX2", "FMA3", "F16C", "X86_V3")
"""Groups of functions that numpy may choose on a machine with AVX2; names of all its versions."""
LOWER, NEXT = "lower", "next"
PARTS = {LOWER: slice(None), NEXT: slice(-1, None)}
"""Word -> which of the sets below this machine's best, the lowest first."""


def held(isa: str) -> dict[str, str]:
    """Return the variables that hold a process to an instruction set.

    numpy refuses names that it does not know or that the machine lacks, so it is asked.
    """
    numpy_core: Any = import_module("numpy._core._multiarray_umath")
    kept = () if isa == "base" else NUMPY_KEEPS
    features = numpy_core.__cpu_features__
    off = [name for name in numpy_core.__cpu_dispatch__ if features[name] and name not in kept]
    return HELD[isa] | ({NUMPY_VARIABLE: " ".join(off)} if off else {})


def lower_sets() -> list[str]:
    """Return the sets to hold this machine to: those of `HELD` below its best, last the highest
    that the best extends.

    Raises: OSError where there is no native library to ask.
    """
    native = library()
    if native is None:
        raise OSError(missing_reason())
    best = native.best_isa
    found = [isa for isa in recipe.usable_sets() if isa in HELD and isa != best]
    return sorted(found, key=lambda isa: recipe.extends(best, isa))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command held to each set in turn; return the first exit status that is not 0."""
    parser = argparse.ArgumentParser(prog="python tests/support/isa.py", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("isa", choices=[*HELD, *PARTS])
    parser.add_argument("command", nargs=argparse.REMAINDER)
    asked = parser.parse_args(arguments)
    if not asked.command:
        parser.error("give the command to run")
    try:
        sets = lower_sets()[PARTS[asked.isa]] if asked.isa in PARTS else [asked.isa]
    except OSError as error:
        parser.error(f"which sets this machine has is not known: {error}")
    if not sets:
        print("this machine has no such set below its best: nothing to hold", flush=True)
    for isa in sets:
        print(f"limited to {isa}:", flush=True)
        status = subprocess.run(asked.command, env=os.environ | held(isa), check=False).returncode
        if status:
            return status
    return 0


if __name__ == "__main__":
    sys.exit(main())
