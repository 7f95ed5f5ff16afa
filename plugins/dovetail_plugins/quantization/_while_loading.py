"""WhileLoading: shared by methods that quantize a full-precision checkpoint as it loads.

Routers of experts are not quantized: they are tiny, and their errors pick other experts.
"""

from __future__ import annotations

from abc import abstractmethod
from functools import partial
from typing import Any

from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.quantization import LinearMethod, LinearSpec, stored_method
from dovetail_plugins.layers.stored.checkpoint_method import ROUTERS
from dovetail_plugins.layers.stored.packing_method import PackingMethod
from dovetail_plugins.layers.stored.rounding import asked_of


class WhileLoading(PackingMethod):
    """Quantizes every linear layer except those that the options skip."""

    capabilities = frozenset({"while_loading"})

    def __init__(self, options: Any, model: ModelSpec) -> None:
        self.options = options
        self.activations = asked_of(options)

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why the checkpoint cannot be quantized: its config may name only this method.
        `query` is a ModelSpec or None."""
        method = stored_method(query)
        if method is None or method in cls.stored_as:
            return []
        return [f'the checkpoint is quantized already, with "{method}"']

    def linear(self, spec: LinearSpec) -> LinearMethod:
        """Return the quantized method, or the plain one for a layer that is skipped."""
        from dovetail_plugins.layers.stored.matrix_linear import plain_linear

        if self.is_skipped(spec.name):
            return plain_linear(spec, activations=self.activations)
        return self._quantized(spec)

    def is_skipped(self, name: str) -> bool:
        """Return whether a layer stays in full precision."""
        return name.endswith(ROUTERS) or any(part in name for part in self._skipped())

    def in_int8(self, group: int) -> LinearMethod:
        """Return the method of a layer in 8 bits. `group` 0: a scale an output."""
        from dovetail_kernels.gemm.weight import quantize_int8, quantize_int8_groups
        from dovetail_plugins.layers.stored.matrix_linear import ConvertedLinear

        convert = partial(quantize_int8_groups, group=group) if group else quantize_int8
        return ConvertedLinear(convert, activations=self.activations)

    @abstractmethod
    def _quantized(self, spec: LinearSpec) -> LinearMethod:
        """Return the quantized method of a layer."""

    @abstractmethod
    def _skipped(self) -> tuple[str, ...]:
        """Return parts of the names of layers that stay in full precision."""
