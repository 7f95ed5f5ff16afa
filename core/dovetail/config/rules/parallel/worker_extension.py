"""The class with methods to add to every rank's worker. Ranks import it, not this process."""

from __future__ import annotations

from pathlib import Path

from dovetail.config.sections.parallel import ParallelConfig
from dovetail.errors import ConfigError

FLAG = "--worker-extension-cls"


def worker_extension(parallel: ParallelConfig) -> str:
    """Return the class as "package.module:Class" or "/path/file.py:Class"; "" without one.

    Raises: ConfigError for text that names no class
    """
    given = parallel.worker_extension_cls
    if not given:
        return ""
    module, _, name = given.rpartition(":" if ":" in given else ".")
    is_file = module.endswith(".py")
    words = [name] if is_file else [*module.split("."), name]
    if not module or not all(word.isidentifier() for word in words):
        raise ConfigError(
            f'"{given}" names no class.',
            where=FLAG,
            fix="write package.module.Class, package.module:Class or file.py:Class.",
        )
    if is_file:
        module = str(Path(module).expanduser().resolve())
    return f"{module}:{name}"
