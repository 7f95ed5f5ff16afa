"""The matrix that tells the classes of pooled hidden states apart."""

from __future__ import annotations

from dovetail.config.checkpoint.labels import labels
from dovetail.interfaces.model import BuildContext
from dovetail.layers.linear import ReplicatedLinear


def class_linear(context: BuildContext, name: str, *, bias: bool = True) -> ReplicatedLinear:
    """Return the matrix that tells classes apart, whole on every rank."""
    model = context.model
    return ReplicatedLinear(
        context, name, model.hidden_size, len(labels(model.hf_config)), bias=bias
    )
