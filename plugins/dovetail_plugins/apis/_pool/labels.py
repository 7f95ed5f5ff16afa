"""The names of classes."""

from __future__ import annotations

from collections.abc import Sequence


def label_of(number: int, labels: Sequence[str]) -> str:
    """Return a class's name; a model that names none numbers them."""
    return labels[number] if number < len(labels) else f"LABEL_{number}"
