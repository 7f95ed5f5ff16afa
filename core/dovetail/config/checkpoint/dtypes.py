"""The compute type: what was asked for, what the checkpoint stores, what the device does well."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from dovetail.config.checkpoint.model_facts import facts_of
from dovetail.errors import ConfigError

log = logging.getLogger(__name__)

_KNOWN = ("float32", "bfloat16", "float16")
BYTES = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    "int8": 1,
}
"""Bytes of one element."""


def compute_dtype(requested: str, config: Mapping[str, Any], device: str) -> str:
    """Return the torch name of the type of activations; `requested` is "auto" or such a name.

    A CPU computes in float32 whatever narrower type is asked (see weight_dtype).
    Raises: ConfigError when the model is known to overflow in the asked type.
    """
    if device == "cpu":
        return "float64" if requested == "float64" else "float32"
    chosen = requested if requested != "auto" else _automatic(stored_dtype(config), device)
    if chosen == "float16" and facts_of(config).overflows_in_float16:
        if requested == "auto":
            return "bfloat16"
        raise ConfigError(
            f"{config['model_type']} models overflow in float16.",
            where="--dtype",
            fix="use --dtype bfloat16 or --dtype float32.",
        )
    return chosen


def weight_dtype(requested: str, config: Mapping[str, Any], device: str) -> str:
    """Return the torch name of the type that matrices are kept in.

    On a CPU that is the type asked for, or the checkpoint's own: kernels there multiply 16-bit
    weights by float32 activations. Elsewhere it is the compute type.
    """
    if device != "cpu":
        return compute_dtype(requested, config, device)
    return requested if requested != "auto" else stored_dtype(config) or "float32"


def tell_dtypes(requested: str, config: Mapping[str, Any], device: str) -> None:
    """Log what "auto" came to and why; nothing where a type was asked for."""
    if requested != "auto":
        return
    stored = stored_dtype(config)
    kept = weight_dtype(requested, config, device)
    computed = compute_dtype(requested, config, device)
    reason = "as the checkpoint stores them" if kept == stored else "the device's own type"
    if stored is None:
        reason = "since the checkpoint states no type"
    log.info("dtype auto: weights %s, %s; %s computes in %s.", kept, reason, device, computed)


def stored_dtype(config: Mapping[str, Any]) -> str | None:
    """Return the type that config.json states, or None."""
    stated = str(config.get("dtype") or config.get("torch_dtype") or "").removeprefix("torch.")
    return stated if stated in _KNOWN else None


def _automatic(stored: str | None, device: str) -> str:
    if stored == "float32":
        log.info("dtype auto: bfloat16 on %s, although the checkpoint stores float32.", device)
        return "bfloat16"
    return stored or "bfloat16"
