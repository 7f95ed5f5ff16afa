"""score_template: a template that joins two texts into one prompt, for reranking decoders.

It is a chat template for two messages with the roles "query" and "document". Source: vLLM's
documented templates for Qwen3-Reranker, which take the same messages.
"""

from __future__ import annotations

from collections.abc import Callable

from dovetail.config.rules.model.chat_template import load_template
from dovetail.interfaces.tokenizer import TokenizerFacts
from dovetail.server.generate.template.template import ChatTemplate


def score_template(value: str, facts: TokenizerFacts) -> Callable[[str, str], str]:
    """Return a function that joins two texts into one prompt.

    `value` is a template or its file name. Raises: ConfigError; the function raises: RequestError
    """
    template = ChatTemplate(load_template(value) or "", facts.special_tokens)

    def join(first: str, second: str) -> str:
        messages = [
            {"role": role, "content": text}
            for role, text in (("query", first), ("document", second))
        ]
        return template.render({"messages": messages, "add_generation_prompt": False})

    return join
