"""The compute type: what was asked for, what the checkpoint stores, what the device does well."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from dovetail.errors import ConfigError

log = logging.getLogger(__name__)

_KNOWN = ("float32", "bfloat16", "float16")
_NATIVE_BF16 = frozenset({"avx512_bf16", "amx_bf16", "bf16"})
_OVERFLOWS_IN_FLOAT16 = ("gemma2", "gemma3", "gemma3_text")
BYTES = {"float32": 4, "bfloat16": 2, "float16": 2}
"""Bytes of one element."""


def compute_dtype(asked: str, config: Mapping[str, Any], device: str) -> str:
    """Return the torch name of the compute type; `asked` is "auto" or such a name.

    Raises: ConfigError when the model is known to overflow in the asked type.
    """
    chosen = asked if asked != "auto" else _automatic(stored_dtype(config), device)
    if chosen == "float16" and config.get("model_type") in _OVERFLOWS_IN_FLOAT16:
        if asked == "auto":
            return "float32" if device == "cpu" else "bfloat16"
        raise ConfigError(
            f"{config['model_type']} models overflow in float16.",
            where="--dtype",
            fix="use --dtype bfloat16 or --dtype float32.",
        )
    return chosen


def stored_dtype(config: Mapping[str, Any]) -> str | None:
    """Return the type that config.json states, or None."""
    stated = str(config.get("dtype") or config.get("torch_dtype") or "").removeprefix("torch.")
    return stated if stated in _KNOWN else None


def _automatic(stored: str | None, device: str) -> str:
    if device == "cpu":
        return _for_cpu(stored or "float32")
    if stored == "float32":
        log.info("dtype auto: bfloat16 on %s, although the checkpoint stores float32.", device)
        return "bfloat16"
    return stored or "bfloat16"


def _for_cpu(stored: str) -> str:
    if stored == "float32" or (stored == "bfloat16" and has_native_bf16()):
        return stored
    log.info("dtype auto: float32, as this CPU computes %s slowly.", stored)
    return "float32"


@cache
def has_native_bf16() -> bool:
    """Return whether this CPU multiplies bfloat16 in hardware (AVX512-BF16, AMX, ARM BF16)."""
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
    except OSError:
        return False
    words = next((line for line in lines if line.startswith(("flags", "Features"))), "")
    return not _NATIVE_BF16.isdisjoint(words.split())
