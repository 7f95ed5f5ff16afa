"""A plugin file for vLLM as most are: an expression over the whole answer, no streaming."""

import json
from collections.abc import Sequence

import regex as re
from vllm.entrypoints.openai.protocol import (
    ChatCompletionRequest,
    DeltaMessage,
    ExtractedToolCallInformation,
    FunctionCall,
    ToolCall,
)
from vllm.entrypoints.openai.tool_parsers.abstract_tool_parser import ToolParser, ToolParserManager
from vllm.logger import init_logger
from vllm.transformers_utils.tokenizer import AnyTokenizer

logger = init_logger(__name__)


@ToolParserManager.register_module(["regex_calls", "regex-calls"])
class RegexCalls(ToolParser):
    """<function=NAME>{...}</function>"""

    def __init__(self, tokenizer: AnyTokenizer):
        super().__init__(tokenizer)
        self.pattern = re.compile(r"<function=([\w.]+)>(.*?)</function>", re.DOTALL)

    def extract_tool_calls(
        self, model_output: str, request: ChatCompletionRequest
    ) -> ExtractedToolCallInformation:
        from vllm.utils import random_uuid  # an import that runs with every answer

        found = self.pattern.findall(model_output)
        if not found:
            return ExtractedToolCallInformation(
                tools_called=False, tool_calls=[], content=model_output
            )
        calls = [
            ToolCall(
                id=f"mine-{random_uuid()}",
                type="function",
                function=FunctionCall(name=name, arguments=json.dumps(json.loads(arguments))),
            )
            for name, arguments in found
        ]
        content = model_output[: model_output.find("<function=")]
        return ExtractedToolCallInformation(
            tools_called=True, tool_calls=calls, content=content.strip() or None
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
        raise NotImplementedError("streaming is not supported")
