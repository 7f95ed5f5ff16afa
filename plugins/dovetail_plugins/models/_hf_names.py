"""Names of tensors in checkpoints of models with a media encoder, including older names.

transformers has renaming rules by model and by part; this module reads those for the start of a
part's names. Source: transformers.conversion_mapping.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

from torch import nn
from transformers.conversion_mapping import get_model_conversion_mapping
from transformers.core_model_loading import PrefixChange, WeightRenaming, apply_renamings

DROPPED = re.compile(r"\^(\w+)\\\.\(\.\+\)")
"""How transformers writes that a part's names may begin with a word more."""
GROUP = re.compile(r"([^()]*)\((\w+(?:\|\w+)*)\)([^()]*)")
"""A pattern with one group of words."""


def encoder_names(
    encoder: nn.Module, *, to: str, start: str = "model"
) -> tuple[tuple[str, str], ...]:
    """Return (name prefix in a checkpoint, prefix after `to`) for all parts of an encoder. In a
    checkpoint the name of the part below the head, `start`, may precede them."""
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


def stored_starts(whole: Any) -> dict[str, str]:
    """Return (start of a name in a checkpoint) -> (start of transformers' name of the same), as
    transformers would write them: those that differ."""
    rules = get_model_conversion_mapping(whole, add_legacy=False)[::-1]
    back = [
        rule.reverse_transform()
        for rule in rules
        if isinstance(rule, WeightRenaming) and not isinstance(rule, PrefixChange)
    ]
    pairs = ((apply_renamings(name, back), name) for name in whole.state_dict())
    return dict(_apart(old, new) for old, new in pairs if old != new)


def _apart(one: str, other: str) -> tuple[str, str]:
    """Return two names without the words at their ends that are the same."""
    ones, others = one.split("."), other.split(".")
    while len(ones) > 1 and len(others) > 1 and ones[-1] == others[-1]:
        ones.pop()
        others.pop()
    ends = "." if one != ".".join(ones) else ""
    return ".".join(ones) + ends, ".".join(others) + ends


def plain_renamings(causal: Any) -> list[tuple[str, str]]:
    """Return transformers' own (old, new) renamings of checkpoint names that are plain text.

    An old name that begins with "^" matches only at the start. Names under other rules stay as they
    are; loading then lists them.
    """
    renamings = []
    for rule in get_model_conversion_mapping(causal, add_legacy=False):
        if not isinstance(rule, WeightRenaming):
            continue
        for old in rule.source_patterns:
            for source, target in _alternatives(old, rule.target_patterns[0]):
                text = source.replace("\\.", ".")
                if not set(text.removeprefix("^")) & set("^$*+?()[]{}|\\"):
                    renamings.append((text, target.replace("\\.", ".")))
    return renamings


def _alternatives(old: str, new: str) -> list[tuple[str, str]]:
    """Return a renaming, or one for each of the words in its only group."""
    found = GROUP.fullmatch(old)
    if found is None or "\\1" not in new:
        return [(old, new)]
    before, words, behind = found.groups()
    return [(before + word + behind, new.replace("\\1", word)) for word in words.split("|")]
