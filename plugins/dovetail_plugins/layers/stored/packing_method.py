"""PackingMethod: a quantization method whose layers are packed once and restored at later starts.
Imports no torch."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from dovetail.interfaces.data.spec import RunSpec
from dovetail.interfaces.quantization import QuantMethod


class PackingMethod(QuantMethod):
    """The base of methods whose layers are MatrixLinears."""

    def loading(self, run: RunSpec) -> AbstractContextManager[Callable[[Any], None] | None]:
        """Return what restores packed weights, and writes them if there are none."""
        from dovetail_plugins.packed_weights.loading import loading

        return loading(run)
