"""A plugin file for vLLM with a state machine: it tells names at once and arguments as they grow.

It leaves the end of arguments to vLLM's server, which looks into prev_tool_call_arr.
"""

import json
from collections.abc import Sequence

from vllm.entrypoints.chat_utils import make_tool_call_id
from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.engine.protocol import (
    DeltaFunctionCall,
    DeltaMessage,
    DeltaToolCall,
    ExtractedToolCallInformation,
    FunctionCall,
    ToolCall,
)
from vllm.tokenizers import TokenizerLike
from vllm.tool_parsers.abstract_tool_parser import Tool, ToolParser, ToolParserManager
from vllm.tool_parsers.utils import find_common_prefix, partial_tag_overlap


class StateMachine(ToolParser):
    """<tool_call>{"name": ..., "arguments": {...}}</tool_call>, the tags being tokens."""

    def __init__(self, tokenizer: TokenizerLike, tools: list[Tool] | None = None):
        super().__init__(tokenizer, tools)
        self.start, self.end = "<tool_call>", "</tool_call>"
        self.start_id = self.vocab.get(self.start)
        self.end_id = self.vocab.get(self.end)
        if self.start_id is None or self.end_id is None:
            raise RuntimeError("could not locate the tool call tokens in the tokenizer!")

    def adjust_request(self, request: ChatCompletionRequest) -> ChatCompletionRequest:
        request = super().adjust_request(request)
        if request.tools and request.tool_choice != "none":
            request.skip_special_tokens = False
        return request

    def extract_tool_calls(
        self, model_output: str, request: ChatCompletionRequest
    ) -> ExtractedToolCallInformation:
        calls = []
        content, *bodies = model_output.split(self.start)
        for body in bodies:
            try:
                value = json.loads(body.split(self.end)[0])
                arguments = json.dumps(value["arguments"], ensure_ascii=False)
            except (ValueError, KeyError):
                return ExtractedToolCallInformation(
                    tools_called=False, tool_calls=[], content=model_output
                )
            calls.append(ToolCall(function=FunctionCall(name=value["name"], arguments=arguments)))
        return ExtractedToolCallInformation(
            tools_called=bool(calls), tool_calls=calls, content=content or None
        )

    def extract_tool_calls_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
        request: ChatCompletionRequest,
    ) -> DeltaMessage | None:
        if self.start_id not in current_token_ids:
            return DeltaMessage(content=delta_text)
        if self.start_id in delta_token_ids:
            self.current_tool_id += 1
            self.current_tool_name_sent = False
            self.prev_tool_call_arr.append({})
            self.streamed_args_for_tool.append("")
            return None
        body = current_text.split(self.start)[-1]
        if self.end in body:
            self._note(body.split(self.end)[0])
            return None
        body = body[: len(body) - partial_tag_overlap(body, self.end)]
        if not self.current_tool_name_sent:
            return self._name(body)
        return self._arguments(body)

    def _note(self, body: str) -> None:
        try:
            self.prev_tool_call_arr[self.current_tool_id] = json.loads(body)
        except ValueError:
            return

    def _name(self, body: str) -> DeltaMessage | None:
        head = '{"name": "'
        name, quote, _ = body.strip().removeprefix(head).partition('"')
        if not body.strip().startswith(head) or not quote:
            return None
        self.current_tool_name_sent = True
        function = DeltaFunctionCall(name=name).model_dump(exclude_none=True)
        return DeltaMessage(
            tool_calls=[
                DeltaToolCall(
                    index=self.current_tool_id,
                    type="function",
                    id=make_tool_call_id(),
                    function=function,
                )
            ]
        )

    def _arguments(self, body: str) -> DeltaMessage | None:
        _, key, arguments = body.partition('"arguments": ')
        arguments = arguments.rstrip("}\n ")
        told = self.streamed_args_for_tool[self.current_tool_id]
        if not key or len(find_common_prefix(told, arguments)) < len(told):
            return None
        more = arguments[len(told) :]
        if not more:
            return None
        self.streamed_args_for_tool[self.current_tool_id] += more
        function = DeltaFunctionCall(arguments=more).model_dump(exclude_none=True)
        return DeltaMessage(
            tool_calls=[DeltaToolCall(index=self.current_tool_id, function=function)]
        )


ToolParserManager.register_module(name="state_machine", module=StateMachine)
