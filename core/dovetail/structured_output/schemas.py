"""The schemas within a constraint: rewriting, and pointers into the client's original."""

from __future__ import annotations

from dovetail.interfaces.data.constraint import Choice, Concat, Constraint, JsonSchema, Repeat
from dovetail_grammars.rewriting.pipeline import original, rewritten


def rewritten_constraint(constraint: Constraint) -> Constraint:
    """Return a constraint whose schemas are rewritten. Raises: InvalidConstraint"""
    match constraint:
        case JsonSchema(schema, whitespace):
            return JsonSchema(rewritten(schema), whitespace)
        case Concat(parts):
            return Concat(tuple(map(rewritten_constraint, parts)))
        case Choice(parts):
            return Choice(tuple(map(rewritten_constraint, parts)))
        case Repeat(part, minimum, maximum):
            return Repeat(rewritten_constraint(part), minimum, maximum)
    return constraint


def has_schema(constraint: Constraint) -> bool:
    """Return whether a schema is part of a constraint."""
    match constraint:
        case JsonSchema():
            return True
        case Concat(parts) | Choice(parts):
            return any(map(has_schema, parts))
        case Repeat(part):
            return has_schema(part)
    return False


def original_pointer(constraint: Constraint, pointer: str) -> str:
    """Convert a pointer into a rewritten constraint to one into the client's schema."""
    return original(constraint.schema, pointer) if isinstance(constraint, JsonSchema) else pointer
