"""Artifacts: compiled constraints in serialized form.

An artifact has the backend's output and, if lists must have unique items, the constraint itself. No
backend enforces `uniqueItems`, so it is enforced on top of them (dovetail_grammars.unique_items).
"""

from __future__ import annotations

from functools import cached_property
from typing import Any

import msgspec

from dovetail.interfaces.data.constraint import (
    Choice,
    Concat,
    Constraint,
    JsonSchema,
    Literal,
    Repeat,
    decode_constraint,
    encode_constraint,
)
from dovetail.interfaces.structured_output import (
    LoadedConstraint,
    StructuredOutputBackend,
    Vocabulary,
)
from dovetail_grammars.rewriting.tree import mapped
from dovetail_grammars.unique_items.answer import (
    Again,
    AnswerParser,
    Json,
    Loose,
    Part,
    Several,
    Text,
)
from dovetail_grammars.unique_items.matcher import UniqueConstraint
from dovetail_grammars.unique_items.shapes import has_unique, shape_of
from dovetail_grammars.unique_items.tokens import TokenIndex


class Artifact(msgspec.Struct, frozen=True, array_like=True):
    """`made` is the backend's output; `unique` the constraint, if it has `uniqueItems`."""

    made: bytes
    unique: bytes = b""


def compiled(backend: StructuredOutputBackend, constraint: Constraint) -> Artifact:
    """Return the artifact of a constraint. Raises: InvalidConstraint"""
    plain = _plain(constraint)
    if plain == constraint:
        return Artifact(backend.compile(constraint))
    AnswerParser(_part(constraint))
    return Artifact(backend.compile(plain), encode_constraint(constraint))


def packed(artifact: Artifact) -> bytes:
    """Return an artifact as bytes."""
    return msgspec.msgpack.encode(artifact)


class ArtifactLoader:
    """Loads artifacts for one vocabulary."""

    def __init__(self, vocabulary: Vocabulary) -> None:
        self._vocabulary = vocabulary

    @cached_property
    def _index(self) -> TokenIndex:
        known = self._vocabulary
        return TokenIndex(known.tokens, known.special, known.eos_ids)

    def loaded(self, backend: StructuredOutputBackend, data: bytes) -> LoadedConstraint:
        """Return the constraint of a packed artifact. Raises: InvalidConstraint"""
        artifact = msgspec.msgpack.decode(data, type=Artifact)
        inner = backend.load(artifact.made)
        if not artifact.unique:
            return inner
        answer = AnswerParser(_part(decode_constraint(artifact.unique)))
        return UniqueConstraint(inner, answer, self._index)


def _plain(constraint: Constraint) -> Constraint:
    """Return a constraint without the parts that are enforced outside the backend."""
    match constraint:
        case JsonSchema(schema, whitespace) if has_unique(schema):
            return JsonSchema(_without_unique(schema), whitespace)
        case Concat(parts):
            return Concat(tuple(map(_plain, parts)))
        case Choice(parts):
            return Choice(tuple(map(_plain, parts)))
        case Repeat(part, minimum, maximum):
            return Repeat(_plain(part), minimum, maximum)
    return constraint


def _without_unique(schema: Any) -> Any:
    if not isinstance(schema, dict):
        return schema
    rest = {keyword: value for keyword, value in schema.items() if keyword != "uniqueItems"}
    return mapped(rest, _without_unique)


def _part(constraint: Constraint) -> Part:
    """Return a constraint as the parts in which an answer is read."""
    match constraint:
        case Literal(text):
            return Text(text.encode())
        case JsonSchema(schema):
            return Json(shape_of(schema))
        case Concat(parts) | Choice(parts):
            return Several(tuple(map(_part, parts)), isinstance(constraint, Choice))
        case Repeat(part, minimum, maximum):
            inner = _part(part)
            return inner if isinstance(inner, Loose) else Again(inner, minimum, maximum)
    return Loose()
