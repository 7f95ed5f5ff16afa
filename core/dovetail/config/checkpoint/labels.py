"""Class labels of a classifier, as in config.json."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

USUAL_COUNT = 2
"""Default number of classes. Source: PreTrainedConfig of transformers"""


def labels(facts: Mapping[str, Any]) -> tuple[str, ...]:
    """Return the names of the classes in order; LABEL_0, LABEL_1 and so on if they have none."""
    named = facts.get("id2label")
    if isinstance(named, Mapping) and named:
        return tuple(str(named[key]) for key in sorted(named, key=int))
    count = facts.get("num_labels")
    return tuple(f"LABEL_{i}" for i in range(count if isinstance(count, int) else USUAL_COUNT))
