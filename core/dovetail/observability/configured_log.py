"""Logging of a command: sets every logger up by its config."""

from __future__ import annotations

from dovetail import registry
from dovetail.config.config import Config
from dovetail.config.rules.observability.log_config import read_log_config
from dovetail.observability.logging import configure


def set_log_up(config: Config, *, has_uvicorn: bool = False) -> None:
    """Set up this process's loggers, and uvicorn's if it serves. Mutates: loggers. Raises:
    ConfigError"""
    wanted, uvicorn_level = config.observability, None
    if has_uvicorn:
        level_name = config.frontend.uvicorn_log_level
        uvicorn_level = registry.admin.value_of("uvicorn_log_level", level_name)
    configure(
        registry.admin.value_of("log_level", wanted.log_level),
        uvicorn_level=uvicorn_level,
        config=read_log_config(wanted.log_config_file),
        form=registry.admin.value_of("log_format", wanted.log_format),
        prefix=wanted.log_prefix,
        is_wanted=wanted.configure_logging,
    )
