"""Calls written as tags, one per parameter: parsing, partial parsing and constraints.

`XmlCalls` says which tags a family uses. Arguments become JSON by the tool's schema, one parameter
after the other; a string is passed on while it is written. What `so_far` returns for a prefix stays
true for every longer text.

Models leave closing tags out. A value may also contain tags, so only the tag of a declared and
otherwise missing parameter ends a value before its closing tag.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from dovetail.interfaces.data.constraint import (
    Concat,
    Constraint,
    JsonSchema,
    Regex,
    Repeat,
    concat,
    optional,
)
from dovetail.interfaces.data.text import Tool, ToolCall
from dovetail.interfaces.tool_parser import MalformedToolCall, UnfinishedToolCall
from dovetail_plugins.syntax.parameters import (
    MAX_OPEN,
    OPEN_NAME,
    Parameter,
    is_open,
    parameters_of,
)
from dovetail_plugins.syntax.plain_text import text_constraint
from dovetail_plugins.syntax.schemas import is_text, kinds
from dovetail_plugins.syntax.xml_reading import XmlReader
from dovetail_plugins.syntax.xml_tags import NAME, NAME_PATTERN, TYPE, XmlTags


@dataclass(frozen=True, slots=True, kw_only=True)
class XmlCalls(XmlTags):
    """Reads and forms calls with these tags."""

    def parse(self, text: str, tools: Sequence[Tool], *, is_over: bool = False) -> list[ToolCall]:
        """Return the calls of a whole text. `is_over`: a value that is open ends with it.

        Raises: MalformedToolCall, UnfinishedToolCall when the text ends within a value.
        """
        read = XmlReader(self, text, tools, is_whole=True, is_over=is_over)
        read.run()
        if read.is_in_value:
            raise UnfinishedToolCall("a value is not closed")
        is_none = all(call.text for call in read.calls)
        if is_none or not read.is_closed or text[read.at :].strip():
            raise MalformedToolCall(f"no call at character {read.at + 1}")
        return read.calls

    def so_far(self, text: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls that a beginning of such a text is sure to hold.

        Raises: MalformedToolCall when it can become no call.
        """
        read = XmlReader(self, text, tools, is_whole=False)
        read.run()
        if not read.calls and not self.can_begin(text.lstrip()):
            raise MalformedToolCall("no call begins like this")
        return read.calls

    def constraint(self, tool: Tool, *, start: str = "", end: str = "") -> Constraint | None:
        """Return the text of one call, or None if its schema does not divide into parameters."""
        parameters = parameters_of(tool)
        if parameters is None or not NAME_PATTERN.fullmatch(tool.name):
            return None
        parts: list[Constraint] = []
        for parameter in parameters:
            part = self._part_constraint(parameter)
            if part is None:
                return None
            parts.append(part if parameter.is_required else optional(part))
        if is_open(tool) and not parts:
            parts.append(Repeat(self._open_part(), 0, MAX_OPEN))
        head = self.before + self.head.replace(NAME, tool.name).replace(TYPE, "1") + self.gap
        return concat(start + head, *parts, self.tail + self.after + end)

    def arguments(self, tool: Tool) -> Constraint | None:
        """Return only the tags of the arguments, between which a line may end; None as above."""
        bare = replace(self, head="", before="", gap="", tail="", after="")
        found = bare.constraint(tool)
        if not isinstance(found, Concat):
            return None
        line = Regex("\n?")
        parts = [
            Repeat(concat(line, part.part), part.least, part.most)
            if isinstance(part, Repeat)
            else concat(line, part)
            for part in found.parts[1:-1]  # the parts around the arguments are empty
        ]
        return Concat((*parts, line))

    def _part_constraint(self, parameter: Parameter) -> Constraint | None:
        """Return a parameter with its tags."""
        if not NAME_PATTERN.fullmatch(parameter.name):
            return None
        line = "\n" if self.is_wrapped else ""
        json_value = JsonSchema({**parameter.schema, "title": parameter.name})
        value: Constraint | None = concat(json_value, line + self.value_end)
        if is_text(parameter.schema):
            value = text_constraint(parameter.schema, self.value_end, line=line)
        key = self.key.replace(NAME, parameter.name).replace(TYPE, self._type(parameter)) + line
        return concat(key, value, self.gap) if value else None

    def _type(self, parameter: Parameter) -> str:
        """Return the type that is written of a parameter."""
        if is_text(parameter.schema):
            return self.text_type
        return self.other_type or min(kinds(parameter.schema) or {"object"})

    def _open_part(self) -> Constraint:
        """Return the constraint of a parameter without a schema."""
        before, _, after = self.key.replace(TYPE, self.text_type).partition(NAME)
        line = "\n" if self.is_wrapped else ""
        value = text_constraint({}, self.value_end, line=line)
        assert value is not None
        return concat(before, OPEN_NAME, after + line, value, self.gap)
