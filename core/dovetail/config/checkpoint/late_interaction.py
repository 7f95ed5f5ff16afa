"""The size of a token's vector in late-interaction models that have a layer for it.

Format: ColBERT's checkpoints have it in artifact.metadata, others as `dim` of config.json.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.config.checkpoint.json_files import read_json

USUAL_SIZE = 128
"""Source: Khattab and Zaharia, ColBERT, 2020"""


def vector_size(facts: Mapping[str, Any], folder: Path) -> int:
    """Return the number of dimensions of a token's vector."""
    metadata = read_json(folder / "artifact.metadata", is_required=False)
    stated = (facts.get("dim"), metadata.get("dim"))
    return next((one for one in stated if isinstance(one, int)), USUAL_SIZE)
