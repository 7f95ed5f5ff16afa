"""engine_ahead(config): an engine's process that imports while the server reads its configuration.

Importing torch takes as long as all that the server does before it can say what the engine is.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import fields

from dovetail.config.config import Config
from dovetail.config.rules.machine.platform import cuda_devices
from dovetail.config.sections.parallel import ParallelConfig
from dovetail.processes import process

ENGINE = "dovetail.engine.process"
IMPORTED = "dovetail_plugins.workers._engine_imports"
PARALLELISM = "TOKENIZERS_PARALLELISM"


def engine_ahead(config: Config) -> AbstractContextManager[None]:
    """Return a context in which the engine's process has begun, if it will be one on the CPU."""
    if not _is_one_on_cpu(config):
        process.taken(ENGINE)
        return nullcontext()
    return started_ahead(ENGINE, IMPORTED, _engine_variables())


def start_engine_ahead() -> None:
    """Start an engine's process before there is a configuration, where it may be on the CPU."""
    if not cuda_devices():
        start_ahead(ENGINE, IMPORTED, _engine_variables())


def _engine_variables() -> dict[str, str]:
    return {PARALLELISM: os.environ.get(PARALLELISM, "false")}


def start_ahead(
    module: str, imported: str, variables: Mapping[str, str], *, has_own_group: bool = False
) -> None:
    """Start a child that imports the module `imported` until it gets its boot message: it becomes
    the first that `spawn` is to start of `module` in the same environment and group. `taken` ends
    it. Nothing happens if there is one already."""
    if module in process.AHEAD:
        return
    environment = process.child_environment() | dict(variables)
    options = process.PLAIN | {"process_group": 0 if has_own_group else None}
    child = process.start([module, imported], environment, **options)
    process.AHEAD[module] = (environment, options), child


@contextmanager
def started_ahead(module: str, imported: str, variables: Mapping[str, str]) -> Iterator[None]:
    """Within a with block, have a child that was started ahead. One that is not needed ends."""
    start_ahead(module, imported, variables)
    try:
        yield
    finally:
        process.taken(module)


def _is_one_on_cpu(config: Config) -> bool:
    """Return whether one engine with one rank runs on the CPU, in a process of its own."""
    device, frontend = config.device.device, config.frontend
    is_cpu = device == "cpu" or (device == "auto" and not cuda_devices())
    is_one = not any(config.is_given(field.name) for field in fields(ParallelConfig))
    in_process = frontend.disable_frontend_multiprocessing or frontend.api_server_count > 1
    return is_cpu and is_one and not in_process
