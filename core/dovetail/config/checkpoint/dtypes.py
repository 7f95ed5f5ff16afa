"""The dtypes of weights and computation: from the flag, the checkpoint, and the device."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from typing import Any

from dovetail.config.checkpoint.model_facts import facts_of
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.platform import AUTO_DTYPE, Platform
from dovetail_kernels.integer_caches import BITS

log = logging.getLogger(__name__)

_KNOWN = ("float32", "bfloat16", "float16")
BYTES = {
    "float64": 8,
    "float32": 4,
    "bfloat16": 2,
    "float16": 2,
    "float8_e4m3fn": 1,
    "float8_e5m2": 1,
    **dict.fromkeys(BITS, 1),
}
"""Bytes of one element."""


def chosen_dtypes(requested: str, config: Mapping[str, Any], platform: Platform) -> tuple[str, str]:
    """Return the dtypes of activations and weights as torch names.

    `requested` is "auto" or such a name. Raises: ConfigError if the model is known to overflow in
    the requested type.
    """
    computed, weight_dtype = platform.dtypes(requested, stored_dtype(config))
    if computed == "float16" and facts_of(config).overflows_in_float16:
        if requested == AUTO_DTYPE:
            return "bfloat16", "bfloat16"
        raise ConfigError(
            f"{config['model_type']} models overflow in float16.",
            where="--dtype",
            fix="use --dtype bfloat16 or --dtype float32.",
        )
    return computed, weight_dtype


def tell_dtypes(model: ModelSpec, platform: Platform) -> None:
    """Log which dtypes "auto" chose, and why."""
    stored = stored_dtype(model.hf_config)
    reason = "the device's own type"
    if stored is None:
        reason = "since the checkpoint states no type"
    elif model.weight_dtype == stored:
        reason = "as the checkpoint stores them"
    log.info(
        "dtype auto: weights %s, %s; %s computes in %s.",
        model.weight_dtype,
        reason,
        platform.device_type,
        model.dtype,
    )


def stored_dtype(config: Mapping[str, Any]) -> str | None:
    """Return the dtype stated in config.json, or None."""
    stated = str(config.get("dtype") or config.get("torch_dtype") or "").removeprefix("torch.")
    return stated if stated in _KNOWN else None
