"""A plugin file for vLLM that registers classes by their names alone, here and elsewhere."""

from vllm.reasoning.identity_reasoning_parser import IdentityReasoningParser
from vllm.tool_parsers import ToolParser, ToolParserManager


class Here(ToolParser):
    """Finds no call."""

    def extract_tool_calls(self, model_output, request):
        raise NotImplementedError


assert issubclass(IdentityReasoningParser, object)
ToolParserManager.register_lazy_module(name="lazy_here", module_path=__name__, class_name="Here")
ToolParserManager.register_lazy_module(
    name="lazy_elsewhere", module_path="lazily_loaded", class_name="LazilyLoaded"
)
