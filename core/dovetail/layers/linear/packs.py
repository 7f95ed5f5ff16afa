"""The layers whose packed weights an earlier start has left: nothing is read for them."""

from __future__ import annotations

from collections.abc import Container
from contextvars import ContextVar

PACKED_LAYERS: ContextVar[Container[str]] = ContextVar("packed_layers", default=())
"""Names of layers (LinearSpec.name) while a model is built and filled. Their parameters have shapes
but no memory: filling them checks the checkpoint's names and sizes, and copies nothing."""
