"""The wheel's build hook: compiles the native kernels and puts them into the wheel.

A wheel gets every instruction set of its machine type, an editable install those that this machine
uses, as does a wheel with DOVETAIL_WHEEL_SETS=machine. Without a compiler there are none and
everything runs on torch. Imports nothing of dovetail: the recipe is run by its path, so that an
isolated build needs no torch.
"""

from __future__ import annotations

import os
import runpy
import sys
import sysconfig
import time
from pathlib import Path
from typing import Any

from hatchling.builders.hooks.plugin.interface import BuildHookInterface

CPU = Path("kernels/dovetail_kernels/cpu")
EDITABLE = "editable"
SETS_VARIABLE = "DOVETAIL_WHEEL_SETS"
NO_WINDOWS = (
    "dovetail does not run on Windows: it locks files and drives processes as on Unix. "
    "Install it in WSL 2."
)


class NativeKernels(BuildHookInterface):  # type: ignore[type-arg]
    """Adds the library; a wheel that has one is tagged for this platform, for any Python 3."""

    def initialize(self, version: str, build_data: dict[str, Any]) -> None:
        """Compile before the files are gathered. Mutates: build_data

        Raises: OSError on Windows
        """
        if sys.platform == "win32":
            raise OSError(NO_WINDOWS)
        cpu = Path(self.root, CPU)
        recipe = runpy.run_path(str(cpu / "recipe.py"))
        is_for_here = version == EDITABLE or os.environ.get(SETS_VARIABLE) == "machine"
        sets = recipe["source_sets"]() if is_for_here else None
        start_s = time.perf_counter()
        library = recipe["build"](cpu / "_lib", sets=sets, tell=tell)
        if library is None:
            self.app.display_warning("no C++ compiler: built without native kernels")
            return
        tell(f"native kernels: {library.name}, {time.perf_counter() - start_s:.0f} s")
        if version == EDITABLE:
            return  # it lies beside its sources already
        build_data["pure_python"] = False
        platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
        build_data["tag"] = f"py3-none-{platform}"
        build_data["force_include"][str(library)] = f"dovetail_kernels/cpu/_lib/{library.name}"


def tell(line: str) -> None:
    """Say at once what takes time: `pip install -v` shows it, other front ends always do."""
    print(line, file=sys.stderr, flush=True)
