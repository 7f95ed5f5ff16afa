"""The matrix that tells the classes of pooled hidden states apart."""

from __future__ import annotations

from dovetail.config.checkpoint.labels import labels
from dovetail.interfaces.model import BuildContext
from dovetail.layers.linear import ReplicatedLinear

NO_CLASSES = (
    "the checkpoint has nothing that tells classes apart: use --convert embed, or a checkpoint "
    "that was trained to classify"
)


def class_linear(
    context: BuildContext, name: str, *, bias: bool = True, in_size: int | None = None
) -> ReplicatedLinear:
    """Return the matrix that tells classes apart, whole on every rank. `in_size` is the size of
    hidden states where it is not the model's."""
    model = context.model
    size = in_size or model.hidden_size
    found = ReplicatedLinear(context, name, size, len(labels(model.hf_config)), bias=bias)
    found.if_missing = NO_CLASSES
    return found
