"""--compilation-config and --enforce-eager together: whether steps run operator by operator."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail import registry
from dovetail.config.convert import from_value
from dovetail.config.engine import Config, flags
from dovetail.errors import ConfigError

FLAG = "--compilation-config"
DEFAULT_LEVEL = 2
KEYS = ("level", "use_cudagraph")


def is_eager(config: Config) -> bool:
    """Return whether no step may be recorded. Raises: ConfigError for a key that is not built."""
    asked = config.engine.compilation_config
    for key in asked:
        if key not in KEYS:
            raise ConfigError(
                "this part of it is not built yet.",
                where=f"{FLAG}.{key}",
                fix=f"leave it out; {' and '.join(KEYS)} are read.",
            )
    level = asked.get("level", DEFAULT_LEVEL)
    is_recorded = bool(registry.value_of("compilation_level", str(level), where=f"{FLAG}.level"))
    return config.model.enforce_eager or not is_recorded or not _may_record(asked)


def _may_record(asked: Mapping[str, Any]) -> bool:
    try:
        return bool(from_value(flags()["enforce_eager"], asked.get("use_cudagraph", True)))
    except ConfigError as error:
        raise ConfigError(
            error.what, where=f"{FLAG}.use_cudagraph", fix="give true or false."
        ) from error
