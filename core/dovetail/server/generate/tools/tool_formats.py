"""The formats of custom tools: the text of a call must be in the grammar of its tool.

The grammar replaces, in the constraint of a call, what the tool parser says of the only argument.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail.errors import RequestError
from dovetail.interfaces.data.constraint import (
    Choice,
    Concat,
    Constraint,
    FreeText,
    Grammar,
    JsonSchema,
    concat,
)
from dovetail.interfaces.data.text import Tool
from dovetail.interfaces.structured_output import InvalidConstraint
from dovetail.interfaces.tool_parser import ToolParser
from dovetail.server.generate.body.chat import ChatRequest, ToolBody
from dovetail.server.generate.tools.custom_tools import ARGUMENT, parameters_of
from dovetail_grammars.text_grammars import SYNTAXES, TextGrammar, text_grammar


def text_grammar_of(form: Any, where: str) -> TextGrammar | None:
    """Return the grammar of a custom tool's `format`, which is the field `where`; None without one.
    Raises: RequestError"""
    if not isinstance(form, Mapping) or form.get("type") != "grammar":
        return None
    if isinstance(form.get("grammar"), Mapping):  # the Responses API has no object around it
        form, where = form["grammar"], f"{where}.grammar"
    syntax, definition = form.get("syntax"), form.get("definition")
    if syntax not in SYNTAXES:
        raise RequestError(f"must be one of {', '.join(SYNTAXES)}.", where=f"{where}.syntax")
    if not isinstance(definition, str):
        raise RequestError("must be a text.", where=f"{where}.definition")
    try:
        return text_grammar(syntax, definition)
    except InvalidConstraint as error:
        raise RequestError(
            f"{error}.", where=f"{where}.definition", code="invalid_grammar"
        ) from error


def checked_formats(body: ChatRequest) -> ChatRequest:
    """Return the request. Raises: RequestError for a faulty grammar of a custom tool"""
    for number, tool in enumerate(body.tools or ()):
        if tool.custom is not None:
            text_grammar_of(tool.custom.format, f"tools[{number}].custom.format")
    return body


def without_formats(body: ChatRequest) -> ChatRequest:
    """Return the request with custom tools that take any text; itself if it has none."""
    if not any(tool.custom for tool in body.tools or ()):
        return body
    tools = [tool.model_copy(update={"custom": None}) for tool in body.tools or ()]
    return body.model_copy(update={"tools": tools})


def ignored_formats(body: ChatRequest, parser: ToolParser | None) -> list[str]:
    """Return the name to report if the text of a custom tool is not what its format says."""
    for tool in (body.tools or ()) if parser else ():
        form = tool.custom.format if tool.custom else None
        is_any = not isinstance(form, Mapping) or form.get("type", "text") == "text"
        if parser and not is_any and held_call(parser, tool) is None:
            return ["tools.format"]
    return []


def held_call(parser: ToolParser, tool: ToolBody) -> Constraint | None:
    """Return the constraint of a custom tool's call whose text is in the tool's grammar. None
    without one, or if the syntax cannot be constrained so."""
    grammar = text_grammar_of(tool.custom.format, "format") if tool.custom else None
    if grammar is None:
        return None
    call = parser.constraint(Tool(name=tool.function.name, parameters=parameters_of({})))
    found = None if call is None else _within(call, grammar)
    return None if found == call else found


def _within(constraint: Constraint, grammar: TextGrammar) -> Constraint:
    match constraint:
        case FreeText(without):
            return FreeText(without, grammar.plain)
        case JsonSchema(schema):
            before, after = (f'{{"{ARGUMENT}": "', '"}') if "properties" in schema else ('"', '"')
            return concat(before, Grammar(grammar.in_json, "gbnf"), after)
        case Concat(parts):
            return Concat(tuple(_within(part, grammar) for part in parts))
        case Choice(parts):
            return Choice(tuple(_within(part, grammar) for part in parts))
    return constraint
