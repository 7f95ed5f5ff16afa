"""Custom tools, which take text. The model sees them as functions with a single text argument.

Source: the OpenAI API reference, function calling: custom tools.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ARGUMENT = "input"
"""The name of the only argument."""


def has_grammar(tool: Mapping[str, Any]) -> bool:
    """Return whether a custom tool's input must follow a grammar."""
    form = tool.get("format")
    return isinstance(form, Mapping) and form.get("type", "text") != "text"


def function_of(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a custom tool as the function that the model sees. A regular expression becomes the
    argument's pattern; a grammar goes into the description."""
    form = tool.get("format")
    form = form if isinstance(form, Mapping) else {}
    form = {**form, **form["grammar"]} if isinstance(form.get("grammar"), Mapping) else dict(form)
    text: dict[str, Any] = {"type": "string"}
    parts = [str(tool["description"])] if tool.get("description") else []
    definition = form.get("definition")
    if isinstance(definition, str):
        syntax = str(form.get("syntax") or "grammar")
        parts.append(f"The input must follow this {syntax}:\n{definition}")
        if syntax == "regex":
            text["pattern"] = f"^(?:{definition})$"
    parameters = {
        "type": "object",
        "properties": {ARGUMENT: text},
        "required": [ARGUMENT],
        "additionalProperties": False,
    }
    found = {"name": tool.get("name"), "parameters": parameters}
    return {**found, "description": "\n\n".join(parts)} if parts else found


def call_of(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return a custom tool's earlier call as a call of that function."""
    text = call.get(ARGUMENT)
    return {"name": call.get("name"), "arguments": {ARGUMENT: "" if text is None else text}}
