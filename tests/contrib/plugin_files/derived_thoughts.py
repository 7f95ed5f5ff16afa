"""A plugin file for vLLM that changes one of vLLM's own reasoning parsers a little."""

from vllm.reasoning.abs_reasoning_parsers import ReasoningParserManager
from vllm.reasoning.deepseek_r1_reasoning_parser import DeepSeekR1ReasoningParser

try:
    from vllm.reasoning.a_module_of_the_future import Better
except ImportError:
    Better = None


@ReasoningParserManager.register_module("derived_thoughts")
class DerivedThoughts(DeepSeekR1ReasoningParser):
    """Where thinking is turned off, what would be reasoning is the answer."""

    def __init__(self, tokenizer, *args, **kwargs):
        super().__init__(tokenizer, *args, **kwargs)
        self.kwargs = dict(kwargs.get("chat_template_kwargs") or {})

    def extract_reasoning(self, model_output, request):
        reasoning, content = super().extract_reasoning(model_output, request)
        kwargs = getattr(request, "chat_template_kwargs", None) or {}
        if content is None and kwargs.get("enable_thinking") is False:
            return None, reasoning
        return reasoning, content

    def extract_reasoning_streaming(self, *args):
        delta = super().extract_reasoning_streaming(*args)
        if delta and delta.reasoning and self.kwargs.get("enable_thinking") is False:
            delta.content, delta.reasoning = delta.reasoning, None
        return delta
