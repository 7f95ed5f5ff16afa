"""score_template: a template that writes two texts as one prompt, for decoders that rank.

It is a chat template for two messages, whose roles are "query" and "document". Source: the
templates that vLLM documents for Qwen3-Reranker, which take the same messages.
"""

from __future__ import annotations

from collections.abc import Callable

from dovetail.config.rules.chat_template import load_template
from dovetail.interfaces.tokenizer import TokenizerFacts
from dovetail.server.generate.template.template import ChatTemplate


def score_template(value: str, facts: TokenizerFacts) -> Callable[[str, str], str]:
    """Return what makes one prompt of two texts; `value` is a template or the name of its file.

    Raises: ConfigError; what is returned: RequestError
    """
    template = ChatTemplate(load_template(value) or "", facts.special_tokens)

    def join(first: str, second: str) -> str:
        messages = [
            {"role": role, "content": text}
            for role, text in (("query", first), ("document", second))
        ]
        return template.render({"messages": messages, "add_generation_prompt": False})

    return join
