"""VllmToolParser: dovetail's tool parser over one that a plugin file has for vLLM.

Every answer, streamed or not, is read token by token by `extract_tool_calls_streaming`; at its end
`extract_tool_calls` reads it whole, and completes what the former left open.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import takewhile
from typing import Any, ClassVar

from dovetail.interfaces.answer_reader import (
    HELD_ARGUMENTS_CHARS,
    AnswerQuery,
    Reading,
    ReadingPlan,
)
from dovetail.interfaces.data.text import Markers, Tool, ToolCall
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.tool_parser import MalformedToolCall, ToolParser
from dovetail.json_text import check
from dovetail_vllm_compat.forced import ForcedCalls
from dovetail_vllm_compat.foreign import (
    FAULTS,
    Foreign,
    ForeignAdapter,
    Grown,
    adjusted,
    request_of,
    rest_of,
)
from dovetail_vllm_compat.protocol import (
    ChatCompletionRequest,
    ChatCompletionToolsParam,
    DeltaMessage,
    ExtractedToolCallInformation,
)

NO_ARGUMENTS = "{}"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallOptions:
    """Options of every tool parser of a plugin file."""

    streams: bool = field(
        default=True,
        metadata={"help": "pass calls on while they are written; false reads whole answers alone"},
    )


class VllmToolParser(ForeignAdapter, ToolParser):
    """A tool parser of core over one that was written for vLLM."""

    info = Info(summary="a tool parser written for vLLM")
    capabilities = frozenset({"parallel_calls", "streams"})
    Options = CallOptions
    markers: ClassVar[tuple[Markers, ...]] = ()
    family = "tool parser"

    def _check(self) -> None:
        self.foreign.check(tools=[])

    def for_forced_calls(self) -> ToolParser:
        """Return the parser of calls that must be made: a JSON list, as in vLLM, or this one, which
        cannot be constrained, where the class says that its model cannot write that."""
        if getattr(self.foreign_class, "supports_required_and_named", True):
            return ForcedCalls(None)
        return self

    def reads(self, query: AnswerQuery) -> ReadingPlan:
        """Return how a request's answers are read: by the class, a new object for each."""
        foreign = self.foreign
        request = request_of(query.request())
        tools = request.tools or []
        shows = adjusted(foreign, foreign.make_for_request(tools=tools), request)

        def begin() -> CallReader:
            return CallReader(foreign, tools, request, streams=self.options.streams)

        return ReadingPlan(begin=begin, shows_special_tokens=shows)

    def parse(self, body: str, tools: Sequence[Tool]) -> list[ToolCall]:
        """Return the calls of a whole answer. Raises: MalformedToolCall"""
        found = whole_answer(self.foreign, [], request_of({}), body)
        if found is None or not found.tool_calls:
            raise MalformedToolCall("the parser finds no call")
        return [call_of(call) for call in found.tool_calls]


def whole_answer(
    foreign: Foreign,
    tools: list[ChatCompletionToolsParam],
    request: ChatCompletionRequest,
    text: str,
) -> ExtractedToolCallInformation | None:
    """Return the calls that the class reads in a whole answer; None where it raises."""
    try:
        found = foreign.make(tools=tools).extract_tool_calls(text, request=request)
        return ExtractedToolCallInformation.model_validate(found, from_attributes=True)
    except FAULTS as error:
        foreign.report("extract_tool_calls", error)
        return None


def call_of(call: Any) -> ToolCall:
    """Return a call of vLLM's kind as dovetail's."""
    function = call.function
    return ToolCall(name=function.name, arguments=function.arguments or NO_ARGUMENTS, id=call.id)


@dataclass(slots=True, kw_only=True)
class _Streamed:
    """A call as far as the streaming method has reported it. `index` is its own number for it."""

    index: int
    call_id: str = ""
    name: str = ""
    arguments: str = ""

    def take(self, news: Any) -> None:
        """Take more of the call. Mutates: self"""
        self.call_id = self.call_id or news.id or ""
        if news.function is not None:
            self.name = self.name or news.function.name or ""
            self.arguments += news.function.arguments or ""


class CallReader:
    """Reads one answer."""

    def __init__(
        self,
        foreign: Foreign,
        tools: list[ChatCompletionToolsParam],
        request: ChatCompletionRequest,
        *,
        streams: bool,
    ) -> None:
        self._foreign = foreign
        self._tools = tools
        self._request = request
        self._parser = foreign.make(tools=tools) if streams else None
        self._grown = Grown()
        self._content = ""
        self._calls: list[_Streamed] = []
        self._num_read = 0

    def read(self, text: str, token_ids: Sequence[int]) -> Reading:
        """Return the news that these tokens bring. Mutates: self"""
        growth = self._grown.grow(text, token_ids)
        if self._parser is None:
            return Reading()
        try:
            news = self._parser.extract_tool_calls_streaming(
                **growth._asdict(), request=self._request
            )
            news = None if news is None else DeltaMessage.model_validate(news, from_attributes=True)
        except NotImplementedError:
            self._parser = None
            self._foreign.warn_once(
                "it does not stream, so its calls are sent when an answer is complete"
            )
            return Reading()
        except FAULTS as error:
            self._parser = None
            self._foreign.report("extract_tool_calls_streaming", error)
            return Reading()
        self._num_read = len(self._grown.text)
        return Reading() if news is None else self._taken(news)

    def _taken(self, news: DeltaMessage) -> Reading:
        for more in news.tool_calls:
            known = next((call for call in self._calls if call.index == more.index), None)
            if known is None:
                known = _Streamed(index=more.index)
                self._calls.append(known)
            known.take(more)
        self._content += news.content or ""
        calls = self._streamed() if news.tool_calls else ()
        return Reading(content=news.content or "", calls=calls)

    def _streamed(self) -> list[ToolCall]:
        named = takewhile(lambda call: call.name, self._calls)
        return [ToolCall(name=c.name, arguments=c.arguments, id=c.call_id) for c in named]

    def finish(self, *, is_cut: bool) -> Reading:
        """Return the rest that the streaming method left open. Mutates: self"""
        streamed = self._streamed()
        text = self._grown.text
        if (is_cut and streamed) or not text:
            return Reading(calls=streamed)
        whole = whole_answer(self._foreign, self._tools, self._request, text)
        if whole is None:
            unread = text[self._num_read :] if self._parser is None else ""
            closed = [c if c.arguments else replace(c, arguments=NO_ARGUMENTS) for c in streamed]
            return Reading(content=unread, calls=self._completed(closed, []))
        calls = self._completed(streamed, [call_of(call) for call in whole.tool_calls])
        if not any(map(_is_told, calls)):
            return Reading(content=self._rest(text if calls else whole.content or ""))
        told = [c if _is_told(c) else replace(c, text=c.arguments) for c in calls]
        return Reading(content=self._rest(whole.content or ""), calls=told)

    def _rest(self, content: str) -> str:
        """Return the content that was not passed on yet."""
        rest = rest_of(self._content, content, may_be_less=True)
        if rest is None:
            self._foreign.warn_once(
                "its two methods disagree on an answer's content, and what was streamed stands; "
                "--plugin-options.tool_parser.streams false reads whole answers alone"
            )
        return rest or ""

    def _completed(self, streamed: list[ToolCall], whole: list[ToolCall]) -> list[ToolCall]:
        """Return the calls, those that were streamed first."""
        names = [call.name for call in streamed]
        agrees = [call.name for call in whole][: len(names)] == names
        if whole and not agrees:
            self._foreign.warn_once(
                "its two methods find different calls, and those that were streamed stand; "
                "--plugin-options.tool_parser.streams false reads whole answers alone"
            )
        known = whole[: len(names)] if agrees else []
        completed = [
            self._whole_call(position, call, known[position] if known else None)
            for position, call in enumerate(streamed)
        ]
        return completed + (whole[len(names) :] if agrees else [])

    def _whole_call(self, position: int, call: ToolCall, whole: ToolCall | None) -> ToolCall:
        """Return a streamed call with all its arguments."""
        if _is_object(call):
            return call
        candidates = [] if whole is None else [whole.arguments]
        candidates += self._remembered(position)
        longer = [text for text in candidates if text.startswith(call.arguments)]
        if longer:
            return replace(call, arguments=longer[0])
        if whole is not None and len(call.arguments) < HELD_ARGUMENTS_CHARS:
            return replace(call, arguments=whole.arguments)
        return call

    def _remembered(self, position: int) -> list[str]:
        """Return the arguments that the parser notes for vLLM's server to send at the end."""
        noted = getattr(self._parser, "prev_tool_call_arr", None) or []
        index = self._calls[position].index if position < len(self._calls) else position
        if not 0 <= index < len(noted) or not isinstance(noted[index], dict):
            return []
        arguments = noted[index].get("arguments")
        if isinstance(arguments, str):
            return [arguments]
        return [] if arguments is None else [json.dumps(arguments, ensure_ascii=False)]


def _is_told(call: ToolCall) -> bool:
    """Return whether core passes a call on, or has begun to."""
    return _is_object(call) or len(call.arguments) >= HELD_ARGUMENTS_CHARS


def _is_object(call: ToolCall) -> bool:
    """Return whether a call's arguments are one JSON object."""
    found = check(call.arguments)
    is_whole = found.fault is None and found.end is not None
    return is_whole and call.arguments.startswith("{") and not call.arguments[found.end :].strip()
