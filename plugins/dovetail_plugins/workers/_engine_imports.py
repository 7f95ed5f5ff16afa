"""What an engine with a CpuWorker imports, imported before there is an engine to run."""

from __future__ import annotations

import gc
import importlib

from dovetail.imports import large_imports
from dovetail_plugins.workers._torch import load_torch

MODULES = (
    "dovetail.engine.loop",
    "dovetail.runner.model_runner",
    "dovetail_plugins.executors.uni",
    "dovetail_plugins.workers.cpu",
)

with large_imports():
    load_torch()
    for name in MODULES:
        importlib.import_module(name)
    gc.freeze()  # later collections look at none of it
