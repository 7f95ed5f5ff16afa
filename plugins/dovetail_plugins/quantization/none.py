"""Unquantized: weights in their original type. Checking whether it fits imports no torch."""

from __future__ import annotations

from typing import Any

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.quantization import LinearMethod, LinearSpec, stored_method
from dovetail_plugins.layers.stored.packing_method import PackingMethod
from dovetail_plugins.layers.stored.rounding import ActivationOptions, asked_of


class Unquantized(PackingMethod):
    """The method of checkpoints that say nothing about quantization."""

    info = Info(summary="full-precision weights, as the checkpoint stores them")
    Options = ActivationOptions

    def __init__(self, options: Any, model: ModelSpec) -> None:
        self.options = options

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why the checkpoint cannot be read unquantized. `query` is a ModelSpec or None."""
        method = stored_method(query)
        return [] if method is None else [f'the checkpoint is quantized with "{method}"']

    def linear(self, spec: LinearSpec) -> LinearMethod:
        """Return the plain method of a layer."""
        from dovetail_plugins.layers.stored.matrix_linear import plain_linear

        return plain_linear(spec, activations=asked_of(self.options))
