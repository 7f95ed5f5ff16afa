"""Families whose last layers have no cache: whose keys and values they read."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from dovetail.errors import ConfigError

FULL, SLIDING = "full_attention", "sliding_attention"


def sources(config: Mapping[str, Any], layer_types: Sequence[str]) -> tuple[int, ...]:
    """Return for each layer the number of the one whose keys and values it reads: its own, or, in
    the last `num_kv_shared_layers`, the last earlier one of the same kind.

    Raises: ConfigError if there is no such layer.
    """
    count, num_shared = len(layer_types), int(config.get("num_kv_shared_layers") or 0)
    first = count - num_shared
    last = {kind: number for number, kind in enumerate(layer_types[: max(first, 0)])}
    missing = sorted(set(layer_types[max(first, 0) :]) - set(last))
    if missing:
        raise ConfigError(
            f"{num_shared} of {count} layers share caches, and no layer of the kind {missing[0]} "
            "before them has one.",
            where="config.json: num_kv_shared_layers",
            fix="use a checkpoint whose first layers are of all kinds.",
        )
    return tuple(i if i < first else last[kind] for i, kind in enumerate(layer_types))


def kinds(config: Mapping[str, Any], *, every: int) -> tuple[str, ...]:
    """Return each layer's kind of attention: as config.json lists them, or all slide but each
    `every`th."""
    count = int(config["num_hidden_layers"])
    derived = [SLIDING if (i + 1) % every else FULL for i in range(count)]
    return tuple(config.get("layer_types") or derived)
