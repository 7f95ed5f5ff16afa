"""VllmReasoningParser: dovetail's reasoning parser over one that a plugin file has for vLLM.

Every answer is read token by token by the streaming method; at its end the other one reads it whole
and adds what the former held back.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

from dovetail.interfaces.answer_reader import AnswerQuery, Reading, ReadingPlan
from dovetail.interfaces.data.text import Markers
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.reasoning_parser import ReasoningParser
from dovetail_vllm_compat.foreign import (
    FAULTS,
    Foreign,
    ForeignAdapter,
    Grown,
    adjusted,
    method_of,
    request_of,
    rest_of,
)
from dovetail_vllm_compat.protocol import ChatCompletionRequest, DeltaMessage

UNKNOWN = Markers(start="", end="")
TOKENS = (
    ("reasoning_start_str", "reasoning_end_str"),
    ("start_token", "end_token"),
    ("think_start_token", "think_end_token"),
)
"""Attributes by which parsers tell the texts around the reasoning."""


class VllmReasoningParser(ForeignAdapter, ReasoningParser):
    """A reasoning parser of core over one that was written for vLLM."""

    info = Info(summary="a reasoning parser written for vLLM")
    markers: ClassVar[Markers] = UNKNOWN
    family = "reasoning parser"

    def _check(self) -> None:
        self.markers = _markers(self.foreign.check(chat_template_kwargs={}))  # type: ignore[misc]

    def starts_inside(self, prompt: str) -> bool:
        """Return whether the prompt leaves the model inside a thinking region, as far as known."""
        return self.markers.end != "" and super().starts_inside(prompt)

    def reads(self, query: AnswerQuery) -> ReadingPlan:
        """Return how a request's answers are read: by the class, a new object for each."""
        foreign = self.foreign
        request = request_of(query.request())
        offered = {"chat_template_kwargs": request.chat_template_kwargs or {}}
        parser = foreign.make_for_request(**offered)
        shows = adjusted(foreign, parser, request)
        tail = foreign.tokenizer.encode(query.tail, add_special_tokens=False) if query.tail else []
        is_over = bool(tail) and ends(foreign, parser, tail)
        has_tools = bool(query.tools)

        def begin() -> ThoughtReader:
            return ThoughtReader(foreign, offered, request, is_over=is_over, has_tools=has_tools)

        return ReadingPlan(begin=begin, shows_special_tokens=shows)


def _markers(parser: Any) -> Markers:
    """Return the texts around the reasoning, as far as an object of the class tells them."""
    for names in TOKENS:
        start, end = (getattr(parser, name, None) for name in names)
        if isinstance(start, str) and isinstance(end, str) and start and end:
            return Markers(start=start, end=end)
    return UNKNOWN


def ends(
    foreign: Foreign, parser: Any, token_ids: list[int], new_ids: list[int] | None = None
) -> bool:
    """Return whether the reasoning is over within these tokens, as far as the parser knows; with
    `new_ids`, which are the last of them, whether these have ended it."""
    try:
        if new_ids is None:
            return bool(parser.is_reasoning_end(token_ids))
        return bool(parser.is_reasoning_end_streaming(token_ids, new_ids))
    except NotImplementedError:
        return False
    except FAULTS as error:
        foreign.report("is_reasoning_end", error)
        return False


class ThoughtReader:
    """Reads one answer. `is_over`: the prompt ends the reasoning, so all is content. `has_tools`:
    the content is read for calls, and begins where is_reasoning_end says so, as in vLLM."""

    def __init__(
        self,
        foreign: Foreign,
        offered: Mapping[str, Any],
        request: ChatCompletionRequest,
        *,
        is_over: bool,
        has_tools: bool,
    ) -> None:
        self._foreign = foreign
        self._offered = offered
        self._request = request
        self._parser = foreign.make(**offered)
        self._is_over = is_over
        self._has_tools = has_tools
        self._streams = True
        self._grown = Grown()
        self._reasoning = ""
        self._content = ""
        self._num_read = 0

    def read(self, text: str, token_ids: Sequence[int]) -> Reading:
        """Return the news that these tokens bring. Mutates: self"""
        if self._is_over:
            self._content += text
            return Reading(content=text)
        growth = self._grown.grow(text, token_ids)
        if not self._streams:
            return Reading()
        names = ("extract_reasoning_streaming", "extract_reasoning_content_streaming")
        try:
            news = method_of(self._parser, *names)(*growth)
            news = None if news is None else DeltaMessage.model_validate(news, from_attributes=True)
        except NotImplementedError:
            self._streams = False
            self._foreign.warn_once(
                "it does not stream, so answers are sent when they are complete"
            )
            return Reading()
        except FAULTS as error:
            self._streams = False
            self._foreign.report(names[0], error)
            return Reading()
        self._num_read = len(self._grown.text)
        ids, new_ids = list(growth.current_token_ids), list(growth.delta_token_ids)
        self._is_over = self._has_tools and ends(self._foreign, self._parser, ids, new_ids)
        return Reading() if news is None else self._taken(news)

    def _taken(self, news: DeltaMessage) -> Reading:
        reading = Reading(reasoning=news.reasoning or "", content=news.content or "")
        self._reasoning += reading.reasoning
        self._content += reading.content
        return reading

    def finish(self, *, is_cut: bool) -> Reading:
        """Return what the streaming method held back. Mutates: self"""
        if self._is_over or not self._grown.text:
            return Reading()
        whole = self._whole()
        if whole is None:
            unread = "" if self._streams else self._grown.text[self._num_read :]
            return Reading(content=unread)
        reasoning = rest_of(self._reasoning, whole[0])
        content = rest_of(self._content, whole[1], may_be_less=True)
        if reasoning is None or content is None:
            self._foreign.warn_once(
                "its two methods disagree on an answer, and what was streamed stands"
            )
            return Reading()
        return Reading(reasoning="" if self._content else reasoning, content=content)

    def _whole(self) -> tuple[str, str] | None:
        """Return (reasoning, content) of the whole answer; None where the method raises."""
        names = ("extract_reasoning", "extract_reasoning_content")
        try:
            parser = self._foreign.make(**self._offered)
            method = method_of(parser, *names)
            reasoning, content = method(self._grown.text, request=self._request)
            return str(reasoning or ""), str(content or "")
        except FAULTS as error:
            self._foreign.report(names[0], error)
            return None
