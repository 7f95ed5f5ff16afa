"""example(constraint, values): one text that has a constraint, written without any grammar
library."""

from __future__ import annotations

import json
import re
from typing import Any

from dovetail.interfaces.data.constraint import (
    Choice,
    Concat,
    Constraint,
    FreeText,
    Grammar,
    JsonSchema,
    Literal,
    Regex,
    Repeat,
)


def example(constraint: Constraint, value: Any) -> str:
    """Return a text of this constraint; `value` fills it.

    A Json of an object gets `value`, one of a member's schema gets the member it is titled after.
    A pattern must match the string, or the JSON text, of a member; free text is the first string
    among the members, if it may be. Raises: ValueError
    """
    match constraint:
        case Literal(text):
            return text
        case JsonSchema(schema):
            return json.dumps(_filling(schema, value))
        case Regex(regex):
            return _matching(regex, value)
        case FreeText(without):
            return _free(without, value)
        case Concat(parts):
            return "".join(example(part, value) for part in parts)
        case Choice(parts):
            return example(parts[0], value)
        case Repeat(part, minimum, maximum):
            return "".join(
                example(part, value) for _ in range(max(minimum, 0 if maximum == 0 else 1))
            )
        case Grammar():
            raise ValueError("a grammar has no example here")


def _filling(schema: dict[str, Any], value: Any) -> Any:
    title = schema.get("title")
    return value[title] if isinstance(value, dict) and title in value else value


def _free(without: tuple[str, ...], value: Any) -> str:
    items = value.values() if isinstance(value, dict) else ()
    texts = [item for item in items if isinstance(item, str)]
    return next((text for text in texts if not any(word in text for word in without)), "")


def _matching(regex: str, value: Any) -> str:
    for item in value.values() if isinstance(value, dict) else (value,):
        for text in (item, json.dumps(item)):
            if isinstance(text, str) and re.fullmatch(regex, text):
                return text
    raise ValueError(f"nothing in {value!r} matches {regex!r}")
