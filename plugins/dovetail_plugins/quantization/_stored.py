"""Which quantization a checkpoint says it was stored with. Imports no torch."""

from __future__ import annotations

from typing import Any


def stored_method(query: Any) -> str | None:
    """Return the method that config.json names, "?" for one without a name, or None.

    `query` is a ModelSpec or None.
    """
    config = query.hf_config.get("quantization_config") if query is not None else None
    if not config:
        return None
    return str(config.get("quant_method", "?")) if isinstance(config, dict) else "?"
