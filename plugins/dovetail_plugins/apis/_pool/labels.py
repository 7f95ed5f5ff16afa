"""The names of classes."""

from __future__ import annotations

from collections.abc import Sequence


def label_of(number: int, labels: Sequence[str]) -> str:
    """Return the name of a class; LABEL_n if the model does not name its classes."""
    return labels[number] if number < len(labels) else f"LABEL_{number}"
