"""A layer by all its names: the model's, the file's, and those in tools' configs.

Checkpoints that also take media prefix the text model ("model.language_model."), and a config may
use the file's names, or the names of its writer's own model. Imports no torch.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping

from dovetail.interfaces.data.headers import TensorHeader
from dovetail_plugins.layers.stored.layer_names import parts_of

WRAPPERS = ("model", "language_model", "text_model", "text")
"""First words of names that only say which container a part is in."""
PREFIXES = ("model.", "model.language_model.", "language_model.model.", "language_model.")
"""Possible prefixes of a part of a text model."""
HEAD, TABLE = "lm_head", "embed_tokens"
TEXT_PARTS = ("layers", HEAD)
FLOATS = ("float16", "bfloat16", "float32", "float64", "F16", "BF16", "F32", "F64")
PLAIN_LEAVES = {"weight", "bias", "e_score_correction_bias"}
LOOKS_AROUND = "(?"


def bare(name: str) -> str:
    """Return a name without the container words before it."""
    words = name.split(".")
    while len(words) > 1 and words[0] in WRAPPERS:
        del words[0]
    return ".".join(words).replace(".vision_model.", ".")


def spellings(name: str) -> tuple[str, ...]:
    """Return the names that a layer of a text model may have elsewhere, its own first."""
    rest = bare(name)
    if rest.partition(".")[0] not in TEXT_PARTS:
        return tuple(dict.fromkeys((name, rest, f"model.{rest}")))
    return tuple(dict.fromkeys((name, *(f"{prefix}{rest}" for prefix in PREFIXES), rest)))


class StoredNames:
    """The layers of a checkpoint's files, found by any of their names."""

    def __init__(self, headers: Iterable[TensorHeader] = ()) -> None:
        self._tensors: dict[str, dict[str, TensorHeader]] = defaultdict(dict)
        for header in headers:
            module, _, leaf = header.name.rpartition(".")
            self._tensors[module][leaf] = header
        self._by_bare: dict[str, list[str]] = defaultdict(list)
        for module in self._tensors:
            self._by_bare[bare(module)].append(module)

    def in_file(self, name: str) -> tuple[str, ...]:
        """Return the file's name of a layer; nothing if it does not have it by this name."""
        if name in self._tensors:
            return (name,)
        found = self._by_bare.get(bare(name), ())
        return tuple(found) if len(found) == 1 else ()

    def has_all(self, names: Iterable[str]) -> bool:
        """Return whether the file has all these layers."""
        return all(self.in_file(name) for name in names)

    def matched(self, name: str, pattern: str) -> tuple[str, ...]:
        """Return the names of a layer to try an expression on. An expression with lookaround is
        only tried on the file's own name."""
        known = self.in_file(name)
        if LOOKS_AROUND in pattern:
            return known or (name,)
        return tuple(dict.fromkeys((*known, *spellings(name))))

    def is_plain(self, name: str) -> bool | None:
        """Return whether the file has a layer, or each of its fused parts, in full precision; None
        if parts differ or the file does not say."""
        modules = tuple(self._modules(name))
        if not modules and bare(name) == HEAD:  # a head that the token table is
            modules = self.in_file(TABLE)
        answers = {self._is_plain(module) for module in modules}
        return answers.pop() if len(answers) == 1 else None

    def _modules(self, name: str) -> Iterator[str]:
        for part in parts_of(name):
            yield from self.in_file(part)

    def _is_plain(self, module: str) -> bool:
        tensors: Mapping[str, TensorHeader] = self._tensors[module]
        weight = tensors.get("weight")
        return weight is not None and weight.dtype in FLOATS and set(tensors) <= PLAIN_LEAVES
