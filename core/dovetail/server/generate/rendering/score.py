"""score_template: a template that joins two texts into one prompt, for reranking decoders.

It is a chat template for two messages with the roles "query" and "document". Source: vLLM's
documented templates for Qwen3-Reranker, which take the same messages.
"""

from __future__ import annotations

from collections.abc import Callable

from dovetail import registry
from dovetail.config.rules.model.chat_template import load_template
from dovetail.interfaces.renderer import Renderer, RendererFacts, RendererInput
from dovetail.interfaces.tokenizer import TokenizerFacts


def score_template(value: str, facts: TokenizerFacts) -> Callable[[str, str], str]:
    """Return a function that joins two texts into one prompt.

    `value` is a template or its file name. Raises: ConfigError; the function raises: RequestError
    """
    known = RendererFacts(path="", model_type="", tokenizer=facts, template=load_template(value))
    renderer: Renderer = registry.make(registry.choose("renderer", "template"), known)

    def join(first: str, second: str) -> str:
        messages = [
            {"role": role, "content": text}
            for role, text in (("query", first), ("document", second))
        ]
        return renderer.render(RendererInput(messages=messages, adds_generation_prompt=False))

    return join
