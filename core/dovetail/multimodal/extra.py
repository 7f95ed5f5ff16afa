"""The packages that decode media, and how to install missing ones."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from typing import Any

from dovetail.errors import ConfigError

PACKAGES = ("PIL", "av", "soundfile", "httpx")
INSTALL = '`pip install "dovetail-llm[mm]"`.'


def check_packages() -> None:
    """Raise ConfigError unless all packages for media are installed."""
    missing = [name for name in PACKAGES if find_spec(name) is None]
    if missing:
        raise ConfigError(
            f"images, sound and video need packages that are not installed: {', '.join(missing)}.",
            fix=INSTALL,
        )


def package(name: str) -> Any:
    """Import a module of one of the packages. Raises: ConfigError"""
    check_packages()
    return importlib.import_module(name)
