"""The writer of Modelfiles. `reading` reads the same back, unless a line of a text ends with three
quotes: Modelfiles have no escapes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from dovetail_plugins.modelfile.model import Modelfile


def write(modelfile: Modelfile) -> str:
    """Return a Modelfile's text."""
    return "\n".join(_lines(modelfile))


def parameter_lines(parameters: Mapping[str, Any]) -> str:
    """Return parameters as Ollama shows them: one on each line, texts in quotes."""
    return "\n".join(
        f"{name} {_value(one)}"
        for name, value in parameters.items()
        for one in (value if isinstance(value, list | tuple) else (value,))
    )


def _lines(modelfile: Modelfile) -> Iterator[str]:
    for base in (modelfile.base, *modelfile.projectors):
        yield f"FROM {base}"
    if modelfile.template:
        yield f"TEMPLATE {_quoted(modelfile.template)}"
    if modelfile.system:
        yield f"SYSTEM {_quoted(modelfile.system)}"
    if modelfile.parameters:
        yield from (
            f"PARAMETER {line}" for line in parameter_lines(modelfile.parameters).split("\n")
        )
    yield from (f"ADAPTER {path}" for path in modelfile.adapters)
    yield from (f"MESSAGE {one.role} {_quoted(one.content)}" for one in modelfile.messages)
    yield from (f"LICENSE {_quoted(text)}" for text in modelfile.licenses)
    if modelfile.requires:
        yield f"REQUIRES {modelfile.requires}"


def _value(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    return _quoted(value) if isinstance(value, str) else str(value)


def _quoted(text: str) -> str:
    """Return a value in the quotes from which it is read back."""
    has_quote = '"' in text or "\n" in text
    return f'"""{text}"""' if has_quote else f'"{text}"'
