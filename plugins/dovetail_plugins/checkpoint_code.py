"""Classes of code that came with a checkpoint: imported from text, each checkpoint a package.

It reads and writes no files. The caller has made sure that the code may run.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Mapping, Sequence
from importlib.abc import ExecutionLoader, MetaPathFinder
from importlib.machinery import ModuleSpec
from importlib.util import spec_from_loader
from types import ModuleType
from typing import Any

from dovetail.errors import ConfigError
from dovetail.interfaces.data.checkpoint_code import CheckpointCode

PACKAGE = "dovetail_checkpoint_code"


class CodeFinder(MetaPathFinder, ExecutionLoader):
    """Finds and loads the modules of one checkpoint."""

    def __init__(self, package: str, files: Mapping[str, str]) -> None:
        self._texts = {
            f"{package}.{name.removesuffix('.py')}": text for name, text in files.items()
        }
        self._texts[package] = ""
        self.package = package

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module of the package, None for all others."""
        if fullname not in self._texts:
            return None
        return spec_from_loader(fullname, self, is_package=fullname == self.package)

    def get_source(self, fullname: str) -> str:
        """Return the text of a module."""
        return self._texts[fullname]

    def get_filename(self, fullname: str) -> str:
        """Return the file name of a module for tracebacks, a path where no file can exist."""
        return f"{os.devnull}/{fullname.replace('.', '/')}.py"

    def is_package(self, fullname: str) -> bool:
        """Return whether the name is that of the package."""
        return fullname == self.package


def load_class(code: CheckpointCode, kind: str) -> Any:
    """Return a class of the code, as `auto_map` calls it. Raises: ConfigError if the code fails, or
    has no such class"""
    package = f"{PACKAGE}_{code.digest}"
    if not any(isinstance(one, CodeFinder) and one.package == package for one in sys.meta_path):
        sys.meta_path.append(CodeFinder(package, code.files))
    module, _, name = code.classes[kind].partition(".")
    try:
        return getattr(importlib.import_module(f"{package}.{module}"), name)
    except (Exception, SystemExit) as error:
        raise ConfigError(
            f"{module}.py of the checkpoint failed: {type(error).__name__}: {error}.",
            where=f"auto_map: {kind}",
            fix="check that its code fits the installed packages.",
        ) from error
