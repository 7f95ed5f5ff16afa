"""A module beside a plugin file: what lazy_form.py registers without importing it."""

from vllm.tool_parsers import ToolParser


class LazilyLoaded(ToolParser):
    """Finds no call."""

    def extract_tool_calls(self, model_output, request):
        from vllm.entrypoints.openai.engine.protocol import ExtractedToolCallInformation

        return ExtractedToolCallInformation(tools_called=False, tool_calls=[], content=model_output)
