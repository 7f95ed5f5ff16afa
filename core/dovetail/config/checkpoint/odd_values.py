"""Checkpoint settings with a value of the wrong type: errors name them, wherever they occur."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from dovetail.config.checkpoint.model_facts import facts_of
from dovetail.errors import ConfigError, DovetailError

FAULTS = (AttributeError, LookupError, OverflowError, RecursionError, TypeError, ValueError)
"""Errors that reading a value of the wrong type raises anywhere."""
KINDS: dict[str, type[Any]] = {
    "auto_map": dict,
    "head_dim": int,
    "layer_types": list,
    "num_key_value_heads": int,
    "partial_rotary_factor": float,
    "quantization_config": dict,
    "rope_parameters": dict,
    "rope_scaling": dict,
    "rope_theta": float,
    "sliding_window": int,
}
"""Types of settings for which model types have no default. Any may be null."""
NUMBERS = (int, float)


@contextmanager
def odd_values_named(
    file: Path, settings: Mapping[str, Any], *, are_the_cause: bool = False
) -> Iterator[None]:
    """Turn errors in the with block into a ConfigError that names the file and the settings of the
    wrong type. Without such a setting, an error passes unchanged unless `are_the_cause`: nothing
    else can cause it."""
    try:
        yield
    except DovetailError:
        raise
    except FAULTS as error:
        keys = odd_keys(settings)
        if not keys and not are_the_cause:
            raise
        raise ConfigError(
            f"a value cannot be used ({type(error).__name__}: {error}).",
            where=f"{file}: {', '.join(keys)}" if keys else str(file),
            fix="download the file again, or see what its model's authors wrote there.",
        ) from error


def odd_keys(settings: Mapping[str, Any]) -> list[str]:
    """Return the keys with a value that is neither null nor of the type that the model type has."""
    kinds = {key: type(value) for key, value in facts_of(settings).defaults.items() if value}
    kinds = KINDS | {key: kind for key, kind in kinds.items() if kind is not type(None)}
    return [key for key, kind in kinds.items() if not _is_of(settings.get(key), kind)]


def _is_of(value: Any, kind: type[Any]) -> bool:
    if value is None:
        return True
    if kind in NUMBERS and not isinstance(value, bool):
        return isinstance(value, NUMBERS)
    return isinstance(value, kind)
