"""A plugin file for vLLM whose parsers go wrong, each in its own way."""

import sys

from vllm.entrypoints.openai.protocol import (
    DeltaMessage,
    ExtractedToolCallInformation,
    FunctionCall,
    ToolCall,
)
from vllm.entrypoints.openai.tool_parsers.abstract_tool_parser import ToolParser, ToolParserManager


class _Echo(ToolParser):
    def extract_tool_calls(self, model_output, request):
        if "[call]" not in model_output:
            return ExtractedToolCallInformation(
                tools_called=False, tool_calls=[], content=model_output
            )
        content, arguments = model_output.split("[call]")
        call = ToolCall(function=FunctionCall(name="f", arguments=arguments))
        return ExtractedToolCallInformation(tools_called=True, tool_calls=[call], content=content)

    def extract_tool_calls_streaming(self, *, delta_text, current_text, **others):
        return DeltaMessage(content=delta_text) if "[" not in current_text else None


ToolParserManager.register_module("quiet")(_Echo)


@ToolParserManager.register_module("raises_streaming")
class RaisesStreaming(_Echo):
    def extract_tool_calls_streaming(self, *, delta_text, current_text, **others):
        if "[" in current_text:
            raise KeyError("arguments")
        return DeltaMessage(content=delta_text)


@ToolParserManager.register_module("raises_always")
class RaisesAlways(RaisesStreaming):
    def extract_tool_calls(self, model_output, request):
        sys.exit(3)


@ToolParserManager.register_module("raises_whole")
class RaisesWhole(_Echo):
    def extract_tool_calls(self, model_output, request):
        raise ValueError("no idea")

    def extract_tool_calls_streaming(self, *, delta_text, **others):
        return DeltaMessage(content=delta_text)


@ToolParserManager.register_module("returns_text")
class ReturnsText(_Echo):
    def extract_tool_calls_streaming(self, *, delta_text, **others):
        return delta_text


@ToolParserManager.register_module("refuses_tools")
class RefusesTools(_Echo):
    def __init__(self, tokenizer, tools=None):
        super().__init__(tokenizer, tools)
        if tools:
            raise ValueError("no more than none")


@ToolParserManager.register_module("needs_a_token")
class NeedsAToken(_Echo):
    def __init__(self, tokenizer):
        super().__init__(tokenizer)
        if "<|no such token|>" not in self.vocab:
            raise RuntimeError("could not locate <|no such token|> in the tokenizer!")
