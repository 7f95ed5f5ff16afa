"""Shared switches of the suite: run it with the built-in plugins absent, share tiny checkpoints."""

from __future__ import annotations

import importlib.abc
import os
import sys
from collections.abc import Iterator, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType

import pytest

# Tiny models on many threads wait for each other; read when torch is first imported.
os.environ.setdefault("OMP_NUM_THREADS", "1")


class Absent(importlib.abc.MetaPathFinder):
    """Makes `dovetail_plugins` unimportable, as if plugins/ did not exist."""

    def find_spec(
        self, name: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        if name.split(".")[0] == "dovetail_plugins":
            raise ModuleNotFoundError(f"No module named {name!r} (--without-plugins)", name=name)
        return None


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--without-plugins", action="store_true", help="make dovetail_plugins unimportable"
    )


def pytest_configure(config: pytest.Config) -> None:
    if config.getoption("--without-plugins"):
        sys.meta_path.insert(0, Absent())


@pytest.fixture(autouse=True)
def registry_is_left_as_found() -> Iterator[None]:
    """Forget plugins that a test added to or hid from this process's registry."""
    from dovetail import registry

    with registry.with_entries({}):
        yield
