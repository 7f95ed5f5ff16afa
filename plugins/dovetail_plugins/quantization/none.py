"""Unquantized: weights as they are, multiplied by torch. Asking if it fits imports no torch."""

from __future__ import annotations

from typing import Any

from dovetail.interfaces.plugin import Info
from dovetail.interfaces.quantization import LinearMethod, LinearSpec, QuantMethod
from dovetail.interfaces.spec import ModelSpec


class Unquantized(QuantMethod):
    """The method of checkpoints that say nothing about quantization."""

    info = Info(summary="full-precision weights, multiplied by torch")

    def __init__(self, options: Any, model: ModelSpec) -> None:
        self.options = options

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why the checkpoint cannot be read unquantized. `query` is a ModelSpec or None."""
        config = query.hf_config.get("quantization_config") if query is not None else None
        if not config:
            return []
        method = config.get("quant_method", "?") if isinstance(config, dict) else "?"
        return [f'the checkpoint is quantized with "{method}"']

    def linear(self, spec: LinearSpec) -> LinearMethod:
        """Return the same plain method for every layer."""
        from dovetail_plugins.quantization._plain import PlainLinear

        return PlainLinear()
