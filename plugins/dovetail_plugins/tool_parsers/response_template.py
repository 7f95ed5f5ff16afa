"""Tool calls as the checkpoint's own response template describes them.

One parser for every model whose tokenizer_config.json has a `response_template`. transformers reads
a call; core finds where it begins and ends.
Source: transformers' documentation of response templates (`parse_response`).
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, ClassVar, Self

from dovetail.errors import ConfigError
from dovetail.interfaces.data.text import Markers, Sample, Tool, ToolCall
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail.interfaces.tool_parser import MalformedToolCall, ToolParser
from dovetail.json_text import check, skip_blanks
from dovetail_plugins.syntax.json_calls import object_at
from dovetail_plugins.syntax.response_template import (
    CALLS,
    EXAMPLE,
    TemplateField,
    TemplateOptions,
    ends_of_content,
    template_of,
)

MAX_ENDS = 16
"""How many closing texts may occur in a call's strings before the rest is not looked at."""
FAULTS = (ValueError, KeyError, TypeError, AttributeError, IndexError)
"""What transformers raises for a text that is not as the template says."""


class ResponseTemplate(ToolParser):
    """A region opens with the fixed text of the template's `tool_calls`, and closes where the
    template says so, or with its JSON."""

    info = Info(
        summary="calls as the checkpoint's response_template describes them",
        source="https://huggingface.co/docs/transformers/chat_response_parsing",
    )
    capabilities = frozenset({"parallel_calls"})
    Options = TemplateOptions
    markers: ClassVar[tuple[Markers, ...]] = (Markers(start="<tool_call>", is_body=True),)
    samples: ClassVar[tuple[Sample, ...]] = (
        Sample(
            text='So.\n<tool_call>\n{"name": "add", "arguments": {"a": 1}}\n</tool_call>',
            content="So.",
            calls=(ToolCall(name="add", arguments='{"a": 1}'),),
        ),
        Sample(
            text='<tool_call>{"name": "now", "arguments": {}}</tool_call>\n<tool_call>'
            '{"name": "find", "arguments": {"q": "</tool_call> \\"é\\""}}</tool_call>',
            calls=(
                ToolCall(name="now", arguments="{}"),
                ToolCall(name="find", arguments='{"q": "</tool_call> \\"é\\""}'),
            ),
        ),
        Sample(
            text="<tool_call>not a call</tool_call> and on",
            content="<tool_call>not a call</tool_call> and on",
        ),
    )

    def __init__(self, options: TemplateOptions, template: Mapping[str, Any] = EXAMPLE) -> None:
        """Raises: ConfigError for a template whose calls cannot be found in a text"""
        super().__init__(options)
        self._field = field = TemplateField(template, CALLS)
        if field.opening is None:
            raise ConfigError(
                "the template does not say how a call begins.", where=f"response_template, {CALLS}"
            )
        self._opening, self._closing = field.opening, field.closing
        texts = field.opening.texts
        self.markers = tuple(Markers(start=text, is_body=True) for text in texts)  # type: ignore[misc]
        self.layout = ends_of_content(template)  # type: ignore[misc]

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax: none names it."""
        return [] if query is None else ["it is used only by name"]

    def bound(self, tokenizer: Tokenizer) -> Self:
        """Return the parser for a checkpoint's template. Raises: ConfigError"""
        return type(self)(self.options, template_of(self.options, tokenizer))

    def parse(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls in one region. Raises: MalformedToolCall"""
        offered = [
            {"type": "function", "function": {"name": tool.name, "parameters": tool.parameters}}
            for tool in tools
        ]
        try:
            values = self._field.values(body, offered)
        except FAULTS as error:
            raise MalformedToolCall(str(error)) from error
        calls = [_call_of(one) for value in values for one in _listed(value)]
        if not calls:
            raise MalformedToolCall("no call")
        return calls

    def region_end(self, body: str) -> int | None:
        """Return the end of the first closing text that leaves a call before it; without one, the
        end of the JSON."""
        opened = self._opening.pattern.match(body)
        if opened is None:
            return None
        if self._closing is None:
            return _json_end(body, opened.end()) if self._field.is_json else None
        return next(self._ends(body, opened.end()), None)

    def _ends(self, body: str, start: int) -> Iterator[int]:
        """Yield the ends of the closing texts that leave a whole call before them, or else that of
        the last one that is looked at."""
        assert self._closing is not None
        for number, found in enumerate(self._closing.pattern.finditer(body, start), 1):
            if found.end() == len(body) and self._closing.may_grow:
                return
            if number == MAX_ENDS or not self._field.is_json or self._is_call(body[: found.end()]):
                yield found.end()

    def _is_call(self, body: str) -> bool:
        try:
            return bool(self.parse(body, ()))
        except MalformedToolCall:
            return False


def _json_end(text: str, start: int) -> int | None:
    """Return the end of the JSON value that begins there, or the place of its first fault."""
    checked = check(text, skip_blanks(text, start))
    return checked.end if checked.fault is None else checked.fault + 1


def _listed(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value]


def _call_of(value: Any) -> ToolCall:
    """Return a value of the field as a call. Raises: MalformedToolCall"""
    function = value.get("function") if isinstance(value, Mapping) else None
    if not isinstance(function, Mapping):
        raise MalformedToolCall("no function")
    name, arguments = function.get("name"), function.get("arguments") or {}
    if not (isinstance(name, str) and name):
        raise MalformedToolCall("no name")
    if isinstance(arguments, str):
        return ToolCall(name=name, arguments=object_at(arguments.strip()))
    if not isinstance(arguments, Mapping):
        raise MalformedToolCall("the arguments are not an object")
    try:
        text = json.dumps(arguments, ensure_ascii=False, allow_nan=False)
    except (ValueError, TypeError) as error:
        raise MalformedToolCall(str(error)) from error
    return ToolCall(name=name, arguments=text)
