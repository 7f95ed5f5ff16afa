"""StructuredOutputBackend: compiles constraints and says which tokens may come next.

A backend lives in three processes: `refuses` is called in the API process, `compile` in a process
that may be killed, `load` and the matchers in the engine process. They exchange CompiledConstraint
objects. The compiling process is forked from one that constructed the backend, so threads started
in the constructor do not exist there.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar, Protocol

import msgspec

from dovetail import moved
from dovetail.interfaces.data.constraint import Constraint
from dovetail.interfaces.plugin import Plugin
from dovetail_grammars.errors import InvalidConstraint as InvalidConstraint  # part of the interface
from dovetail_grammars.errors import UnsupportedPart as UnsupportedPart

if TYPE_CHECKING:
    import numpy as np

__getattr__ = moved.attributes(__name__)


class AnswerConstraint(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """A compiled constraint of a whole answer.

    `backend` is the plugin's name, `artifact` the compiled form to load; equal constraints have
    equal keys. It applies from the beginning of the answer or, with `starts_after`, after the first
    occurrence of that text (the end of the reasoning). `closes`: near max_tokens only tokens that
    lead to the end are allowed.
    """

    backend: str
    key: str
    artifact: bytes
    starts_after: str = ""
    closes: bool = False


class TriggeredConstraints(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """Compiled constraints within free text.

    Once a trigger is written, its artifact's constraint applies until it is complete; then text is
    free again. `triggers` pairs up with `artifacts`. Triggers inside the reasoning section are
    ignored. `reasoning_markers` are its (start, end) texts, empty for a model without reasoning;
    `starts_in_reasoning`: the prompt already opened it. `closes`: as of an AnswerConstraint.
    """

    backend: str
    key: str
    triggers: tuple[str, ...]
    artifacts: tuple[bytes, ...]
    reasoning_markers: tuple[str, ...] = ()
    starts_in_reasoning: bool = False
    closes: bool = False


CompiledConstraint = AnswerConstraint | TriggeredConstraints
"""What is sent to the engine."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Vocabulary:
    """The tokens that a model may write.

    `tokens[i]` are the bytes of token i, empty for special tokens and for ids without a token.
    `special` maps the texts of special tokens to their ids: such a token is allowed only if a
    constraint contains its text literally. `size` is the length of a row of logits. `encode`
    returns the tokens that the model's tokenizer writes for a text after other text, or None if
    they do not decode to this text byte for byte. Forced text must be these tokens, because the
    model has seen no others.
    """

    tokens: Sequence[bytes]
    special: Mapping[str, int]
    eos_ids: tuple[int, ...]
    special_ids: frozenset[int]
    size: int
    encode: Callable[[str], list[int] | None] = field(default=lambda text: None, compare=False)

    @property
    def mask_words(self) -> int:
        """Return the number of 32-bit words of a mask row."""
        return -(-self.size // 32)


class Matcher(Protocol):
    """The state of one answer within a constraint. Called by one thread at a time."""

    def accept(self, token_id: int) -> bool:
        """Advance by a token; return False, without advancing, if the constraint forbids it."""

    def fill(self, mask: np.ndarray) -> None:
        """Set bit i of the mask (uint32 words, zero before) for every token i that may follow.

        The bits of end tokens are set exactly if the answer may end. Mutates: mask
        """

    def is_complete(self) -> bool:
        """Return whether only the end may follow."""

    def forced(self) -> Sequence[int]:
        """Return the tokens of a text that must follow, as the tokenizer writes it; empty if there
        is a choice."""

    def rollback(self, num_tokens: int) -> None:
        """Undo the last `num_tokens` accepted tokens."""


class LoadedConstraint(Protocol):
    """A constraint ready for matching. Shared by all answers that it constrains."""

    num_bytes: int

    def matcher(self) -> Matcher:
        """Return a matcher at the beginning of an answer."""


class StructuredOutputBackend(Plugin):
    """Constructed once per process and vocabulary; called by one thread at a time."""

    interface_version: ClassVar[int] = 2
    known_capabilities: ClassVar[Mapping[str, str]] = {
        "json": "JSON that is valid under a schema",
        "choice": "one of several texts",
        "regex": "text that matches a regular expression; one of several texts, too",
        "grammar": "text of a context-free grammar",
        "concat": "concatenations, choices and repetitions of other constraints",
        "free_text": "free text up to a word",
        "forced": "reports tokens that must follow",
        "special": "special tokens where a literal contains their text",
        "whitespace": "white space within JSON by any pattern",
    }
    languages: ClassVar[tuple[str, ...]] = ()
    """Grammar languages that it supports."""
    keywords: ClassVar[frozenset[str]] = frozenset()
    """Keywords of JSON schemas that it enforces wherever they occur, except as `refuses` says.
    `uniqueItems` is enforced outside the backends and not passed to them."""

    @abstractmethod
    def __init__(self, options: Any, vocabulary: Vocabulary) -> None:
        """Prepare the vocabulary. May take seconds."""

    @classmethod
    def refuses(cls, node: Mapping[str, Any], keyword: str) -> str | None:
        """Return why a keyword of `keywords` is not enforced in this node of a schema, or None."""
        return None

    @abstractmethod
    def compile(self, constraint: Constraint) -> bytes:
        """Return the artifact that `load` needs. It runs in a forked child: state changes made here
        are lost.

        May take long: it is killed at a limit. Raises: InvalidConstraint
        """

    @abstractmethod
    def load(self, artifact: bytes) -> LoadedConstraint:
        """Return the compiled constraint, ready for matching."""
