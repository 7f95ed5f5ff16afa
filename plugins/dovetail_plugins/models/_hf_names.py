"""Names of tensors in checkpoints of models with an encoder of media, older ones among them.

transformers keeps what it renames by model and by part; the rules that stand at the start of a
part's names are read here. Source: transformers.conversion_mapping.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from torch import nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import WeightRenaming

DROPPED = re.compile(r"\^(\w+)\\\.\(\.\+\)")
"""How transformers writes that a part's names may begin with a word more."""


def encoder_names(
    encoder: nn.Module, *, to: str, start: str = "model"
) -> tuple[tuple[str, str], ...]:
    """Return (start of a name in a checkpoint, start of a name behind `to`) of all parts of an
    encoder. A checkpoint may have the name of the part below the head, `start`, before them."""
    own = [name for name, _ in encoder.named_children()]
    own += [name for name, _ in encoder.named_parameters(recurse=False)]
    pairs = [*_longer(encoder), *((name, name) for name in own)]
    return tuple((first + old, to + new) for first in (f"{start}.", "") for old, new in pairs)


def _longer(encoder: Any) -> Iterator[tuple[str, str]]:
    """Yield (start, start) of names that have a word more in older checkpoints."""
    for rule in get_model_conversion_mapping(encoder, add_legacy=False):
        if not isinstance(rule, WeightRenaming) or not rule.scope_prefix:
            continue
        for old in rule.source_patterns:
            found = DROPPED.fullmatch(old)
            if found and rule.target_patterns == ["\\1"]:
                yield f"{rule.scope_prefix}.{found[1]}.", f"{rule.scope_prefix}."
