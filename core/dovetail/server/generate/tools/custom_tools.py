"""Custom tools, which take text. The model sees them as functions with a single text argument.

`tool_formats` holds the text to a grammar. Source: the OpenAI API reference, function calling:
custom tools.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

ARGUMENT = "input"
"""The name of the only argument."""


def parameters_of(text: Mapping[str, Any]) -> dict[str, Any]:
    """Return the schema of the only argument, whose own schema is given."""
    return {
        "type": "object",
        "properties": {ARGUMENT: {"type": "string", **text}},
        "required": [ARGUMENT],
        "additionalProperties": False,
    }


def function_of(tool: Mapping[str, Any]) -> dict[str, Any]:
    """Return a custom tool as the function that the model sees. A regular expression becomes the
    argument's pattern; a grammar goes into the description."""
    form = tool.get("format")
    form = form if isinstance(form, Mapping) else {}
    form = {**form, **form["grammar"]} if isinstance(form.get("grammar"), Mapping) else dict(form)
    text: dict[str, Any] = {}
    parts = [str(tool["description"])] if tool.get("description") else []
    definition = form.get("definition")
    if isinstance(definition, str):
        syntax = str(form.get("syntax") or "grammar")
        parts.append(f"The input must follow this {syntax}:\n{definition}")
        if syntax == "regex":
            text["pattern"] = f"^(?:{definition})$"
    found = {"name": tool.get("name"), "parameters": parameters_of(text)}
    return {**found, "description": "\n\n".join(parts)} if parts else found


def call_of(call: Mapping[str, Any]) -> dict[str, Any]:
    """Return a custom tool's earlier call as a call of that function."""
    text = call.get(ARGUMENT)
    return {"name": call.get("name"), "arguments": {ARGUMENT: "" if text is None else text}}
