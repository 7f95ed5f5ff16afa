"""The number of experts of a model, under any of the names that config.json uses."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_EXPERTS = ("num_local_experts", "num_experts", "n_routed_experts", "moe_num_experts")
_PICKED = ("num_experts_per_tok", "num_experts_per_token", "moe_top_k", "top_k_experts")


def experts_of(config: Mapping[str, Any]) -> tuple[int, int]:
    """Return the number of experts, and how many of them process a token; zeros without experts."""
    found = [
        next((int(config[key]) for key in keys if isinstance(config.get(key), int)), 0)
        for keys in (_EXPERTS, _PICKED)
    ]
    return (found[0], found[1]) if all(found) else (0, 0)
