"""Logging settings of every process, and --log-config-file: Python's dictConfig as JSON.

The parent reads the file once; every process gets its content. `observability.logging` applies it.
Source of the format: the Python documentation, logging.config.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dovetail import registry
from dovetail.config.sections.observability import ObservabilityConfig
from dovetail.errors import ConfigError
from dovetail.json_values import InvalidJson, json_value

FLAG = "--log-config-file"


def log_fields(config: ObservabilityConfig) -> dict[str, Any]:
    """Return the fields of an EngineSpec for its processes' logging. Raises: ConfigError"""
    return {
        "log_level": registry.admin.value_of("log_level", config.log_level),
        "log_config": read_log_config(config.log_config_file),
        "log_format": registry.admin.value_of("log_format", config.log_format),
        "log_prefix": config.log_prefix,
        "sets_up_log": config.configure_logging,
    }


def read_log_config(path: str | None) -> dict[str, Any] | None:
    """Return the file's content, None without a file. Raises: ConfigError"""
    if path is None:
        return None
    fix = "name a JSON file in the form of Python's logging dictConfig."
    try:
        content = json_value(Path(path).read_text(encoding="utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        reason = error.strerror if isinstance(error, OSError) else error
        raise ConfigError(f"cannot read {path}: {reason}.", where=FLAG, fix=fix) from error
    except InvalidJson as error:
        raise ConfigError(f"{path} {error}", where=FLAG, fix=fix) from error
    if not isinstance(content, dict):
        raise ConfigError(f"{path} holds no JSON object.", where=FLAG, fix=fix)
    return content
