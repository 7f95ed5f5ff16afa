"""engine_ahead(config): an engine's process that imports while the server reads its configuration.

Importing torch takes as long as all that the server does before it can say what the engine is.
"""

from __future__ import annotations

import os
from contextlib import AbstractContextManager, nullcontext
from dataclasses import fields

from dovetail.config.config import Config
from dovetail.config.rules.machine.platform import cuda_devices
from dovetail.config.sections.parallel import ParallelConfig
from dovetail.processes.process import started_ahead

ENGINE = "dovetail.engine.process"
IMPORTED = "dovetail_plugins.workers._engine_imports"
PARALLELISM = "TOKENIZERS_PARALLELISM"


def engine_ahead(config: Config) -> AbstractContextManager[None]:
    """Return a context in which the engine's process has begun, if it will be one on the CPU."""
    if not _is_one_on_cpu(config):
        return nullcontext()
    return started_ahead(ENGINE, IMPORTED, {PARALLELISM: os.environ.get(PARALLELISM, "false")})


def _is_one_on_cpu(config: Config) -> bool:
    """Return whether one engine with one rank runs on the CPU, in a process of its own."""
    device, frontend = config.device.device, config.frontend
    is_cpu = device == "cpu" or (device == "auto" and not cuda_devices())
    is_one = not any(config.is_given(field.name) for field in fields(ParallelConfig))
    in_process = frontend.disable_frontend_multiprocessing or frontend.api_server_count > 1
    return is_cpu and is_one and not in_process
