"""StructuredOutputBackend: constrains answers, by saying which tokens may come next.

A backend lives in three places: its `refusals` in the API process, `compile` in a process that may
be killed, `load` and the matchers in the engine's. What crosses between them is a
CompiledConstraint. The one that compiles is forked from one that made the backend: no thread that
was started there is left.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import msgspec

from dovetail.interfaces.constraint import Constraint
from dovetail.interfaces.plugin import Plugin

if TYPE_CHECKING:
    import numpy as np


class CompiledConstraint(msgspec.Struct, frozen=True, kw_only=True):
    """A compiled constraint on its way to the engine.

    `backend` names the plugin, `artifact` is what its `compile` returned, `key` tells equal
    compiled constraints. The constraint counts from the beginning of the answer, or, with
    `starts_after`, from behind the first place where that text was written (the end of the
    reasoning). With `triggers` text is free until one of them was written; then the constraint that
    follows it holds until it is complete, and text is free again. `triggers` pairs up with
    `artifacts`. Triggers inside the reasoning are ignored: `thinking` holds its opening and closing
    texts (empty: the model has no reasoning), and `starts_in_reasoning` says that the prompt has
    already opened it.
    `closes`: near max_tokens only what leads to the end is allowed.
    """

    backend: str
    key: str
    artifact: bytes = b""
    starts_after: str = ""
    triggers: tuple[str, ...] = ()
    artifacts: tuple[bytes, ...] = ()
    reasoning_markers: tuple[str, ...] = ()
    starts_in_reasoning: bool = False
    closes: bool = False


def words(text: str) -> frozenset[str]:
    """Return the words of a text, for tables of keywords."""
    return frozenset(text.split())


class InvalidConstraint(ValueError):
    """A constraint that cannot be compiled. `pointer` is the JSON Pointer of the part at fault."""

    def __init__(self, what: str, pointer: str = "") -> None:
        super().__init__(what)
        self.pointer = pointer


@dataclass(frozen=True, slots=True)
class UnsupportedPart:
    """A part of a constraint that a backend does not enforce. `pointer` leads to it in the
    schema."""

    pointer: str
    what: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The tokens that a model may write.

    `tokens[i]` are the bytes that token i writes, empty for special tokens and for ids of the
    model without a token. `special` maps the texts of special tokens to their ids: only where a
    constraint has such a text literally may the token stand. `size` is the length of a row of
    logits.
    """

    tokens: Sequence[bytes]
    special: Mapping[str, int]
    eos_ids: tuple[int, ...]
    special_ids: frozenset[int]
    size: int

    @property
    def mask_words(self) -> int:
        """Return the 32-bit words of a mask row."""
        return -(-self.size // 32)


class Matcher(Protocol):
    """One answer's place in a constraint. One thread calls it."""

    def accept(self, token_id: int) -> bool:
        """Go on by a token; return False, and stay, where the constraint does not allow it."""

    def fill(self, mask: np.ndarray) -> None:
        """Set bit i of the mask (uint32 words, zero before) for every token i that may follow.

        The end tokens' bits are set exactly where the answer may end. Mutates: mask
        """

    def is_complete(self) -> bool:
        """Return whether nothing but the end may follow."""

    def forced(self) -> Sequence[int]:
        """Return tokens that must follow, one way of writing a text that leaves no choice."""

    def rollback(self, num_tokens: int) -> None:
        """Go back by accepted tokens."""


class LoadedConstraint(Protocol):
    """A loaded constraint. Shared by all answers that must match it."""

    num_bytes: int

    def matcher(self) -> Matcher:
        """Return a matcher at the beginning."""


class StructuredOutputBackend(Plugin):
    """Made once per process and vocabulary; called by one thread at a time."""

    interface_version: ClassVar[int] = 1
    known_capabilities: ClassVar[Mapping[str, str]] = {
        "json": "JSON that matches a schema",
        "choice": "one of several texts",
        "regex": "text that matches a regular expression, or one of several texts",
        "grammar": "text of a context-free grammar",
        "concat": "sequences, choices and repeats of other constraints",
        "free_text": "free text up to a word",
        "forced": "knows tokens that must follow",
        "special": "special tokens where a literal has their text",
        "whitespace": "white space within JSON by any pattern",
    }
    languages: ClassVar[tuple[str, ...]] = ()
    """Grammar languages that it reads."""
    keywords: ClassVar[frozenset[str]] = frozenset()
    """Keywords of JSON schemas that it enforces wherever they stand; `refuses` says more."""

    @abstractmethod
    def __init__(self, options: Any, vocabulary: Vocabulary) -> None:
        """Prepare the vocabulary. May take seconds."""

    @classmethod
    def refuses(cls, node: Mapping[str, Any], keyword: str) -> str | None:
        """Return why a keyword of `keywords` is not enforced in this node of a schema, or None."""
        return None

    @abstractmethod
    def compile(self, constraint: Constraint) -> bytes:
        """Return what `load` needs, as if for the first time: whatever it keeps is lost.

        May run long: it is killed. Raises: InvalidConstraint
        """

    @abstractmethod
    def load(self, artifact: bytes) -> LoadedConstraint:
        """Return the constraint that was compiled."""
