"""The activation that a cross-encoder of sentence-transformers was saved with.

Format: config.json has `sentence_transformers.activation_fn`, older ones
`sbert_ce_default_activation_function`, newest folders `config_sentence_transformers.json`; each
names a class of torch.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.config.checkpoint.json_files import read_json
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import ACTIVATIONS

_OLD = "sbert_ce_default_activation_function"
_FIELD = "activation_fn"


def stored_activation(facts: Mapping[str, Any], folder: Path) -> str | None:
    """Return the activation's name, None if none is stored. Raises: ConfigError"""
    settings = facts.get("sentence_transformers")
    newest = read_json(folder / "config_sentence_transformers.json", is_required=False)
    named = [settings.get(_FIELD) if isinstance(settings, Mapping) else None, facts.get(_OLD)]
    path = next((one for one in (*named, newest.get(_FIELD)) if isinstance(one, str)), None)
    if path is None:
        return None
    name = path.rpartition(".")[2].lower()
    if name not in ACTIVATIONS:
        raise ConfigError(
            f'the activation "{path}" is not supported.',
            where=str(folder / "config.json"),
            fix=f"there are {', '.join(ACTIVATIONS)}: choose by --pooler-config.activation.",
        )
    return name
