"""load_torch(): torch, and how its idle threads wait, which is decided when it is loaded."""

from __future__ import annotations

import os
import sys
from functools import cache

from dovetail_kernels.cpu import library as native

WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
"""What says how long OpenMP's idle threads wait awake, read once when torch is loaded."""


@cache
def load_torch() -> bool:
    """Import torch; return whether its threads wait awake although nobody wants that.

    With native kernels torch's threads mostly wait, and waiting awake they would take the cores
    that the kernels run on.
    """
    is_told = any(name in os.environ for name in WAITING)
    is_loaded = "torch" in sys.modules
    if native.library() is not None and not is_loaded and not is_told:
        os.environ["OMP_WAIT_POLICY"] = "PASSIVE"
    import torch

    assert torch is not None
    return is_loaded and not is_told
