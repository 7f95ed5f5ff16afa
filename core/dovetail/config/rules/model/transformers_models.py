"""Model classes that transformers knows, read from its source without importing it."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import util
from pathlib import Path

CAUSAL = "MODEL_FOR_CAUSAL_LM_MAPPING_NAMES"
MASKED = "MODEL_FOR_MASKED_LM_MAPPING_NAMES"
BASES = "MODEL_MAPPING_NAMES"
MEDIA = (
    "MODEL_FOR_IMAGE_TEXT_TO_TEXT_MAPPING_NAMES",
    "MODEL_FOR_MULTIMODAL_LM_MAPPING_NAMES",
    "MODEL_FOR_SEQ_TO_SEQ_CAUSAL_LM_MAPPING_NAMES",
)
"""Mappings with classes that take images or sound in addition to text; some take only text."""
WIDER = "ForConditionalGeneration"
"""Suffix of classes that take more than text, or an additional text."""
PAGE = "docs/reference/architectures.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownClasses:
    """`causal` classes generate text from text; `causal_types` are their model types. `every`
    contains the classes of all tasks. Models of `masked_types` see later tokens. Classes in `media`
    may take images or sound. `generating` and `bases` are the classes by model type, those without
    a head in `bases`."""

    causal: frozenset[str] = frozenset()
    causal_types: frozenset[str] = frozenset()
    masked_types: frozenset[str] = frozenset()
    media: frozenset[str] = frozenset()
    every: frozenset[str] = frozenset()
    generating: Mapping[str, str] = field(default_factory=dict)
    bases: Mapping[str, str] = field(default_factory=dict)

    def has_text_part(self, architecture: str, text_type: str, model_type: str = "") -> bool:
        """Return whether a class takes images or sound in addition to text, and its text part
        generates text. That part's type is the one in its text settings, or the model's own."""
        is_wider = architecture in self.every and architecture.endswith(WIDER)
        return is_wider and bool({text_type, model_type} & self.causal_types)

    def has_decoder(self, architecture: str, model_type: str) -> bool:
        """Return whether a class is a decoder for another task than generating."""
        is_causal = model_type in self.causal_types - self.masked_types
        return is_causal and architecture in self.every


@cache
def known_classes() -> KnownClasses:
    """Return the classes of the installed transformers; empty without it."""
    spec = util.find_spec("transformers")
    if spec is None or spec.origin is None:
        return KnownClasses()
    path = Path(spec.origin).parent / "models" / "auto" / "modeling_auto.py"
    if not path.is_file():
        return KnownClasses()
    causal: dict[str, str] = {}
    masked: dict[str, str] = {}
    every: set[str] = set()
    media: list[tuple[str, str]] = []
    bases: dict[str, str] = {}
    for node in ast.parse(path.read_text(encoding="utf-8")).body:
        if not isinstance(node, ast.Assign) or not isinstance(node.targets[0], ast.Name):
            continue
        pairs = _pairs(node.value)
        every.update(name for _, name in pairs)
        causal.update(pairs if node.targets[0].id == CAUSAL else ())
        media.extend(pairs if node.targets[0].id in MEDIA else ())
        bases.update(pairs if node.targets[0].id == BASES else ())
        masked.update(pairs if node.targets[0].id == MASKED else ())
    return KnownClasses(
        causal=frozenset(causal.values()),
        causal_types=frozenset(causal),
        masked_types=frozenset(masked),
        media=frozenset(name for _, name in media),
        every=frozenset(every),
        generating={**dict(media), **causal},
        bases=bases,
    )


def _pairs(mapping: ast.expr) -> list[tuple[str, str]]:
    """Return (type, class) pairs of a mapping that the source writes as pairs of strings."""
    pairs: list[tuple[str, str]] = []
    for pair in ast.walk(mapping):
        if not isinstance(pair, ast.Tuple) or len(pair.elts) != 2:
            continue
        key, given = pair.elts
        parts = given.elts if isinstance(given, ast.Tuple) else [given]
        pairs += [(str(key.value), name) for name in map(_text, parts)
                  if name and isinstance(key, ast.Constant)]  # fmt: skip
    return pairs


def _text(node: ast.expr) -> str | None:
    return node.value if isinstance(node, ast.Constant) and isinstance(node.value, str) else None
