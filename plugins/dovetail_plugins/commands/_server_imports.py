"""What a model's server imports, imported before there is a model; its engine begins likewise."""

from __future__ import annotations

import gc
import importlib

from dovetail.imports import large_imports
from dovetail_plugins.commands._engine_ahead import start_engine_ahead

MODULES = (
    "dovetail.config.rules.checks",
    "dovetail.engine.client.async_engine",
    "dovetail.server.app",
    "dovetail.server.launch.lifecycle",
    "dovetail.server.launch.serve",
    "dovetail.server.launch.settings",
)

start_engine_ahead()
with large_imports():
    for name in MODULES:
        importlib.import_module(name)
    gc.freeze()  # later collections look at none of it
