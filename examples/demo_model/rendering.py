"""Render chats with the demo model's template, the way inference engines do.

Used by training and tests. This module does not know the tokenizer.
"""

import json
from functools import cache
from pathlib import Path
from typing import Any

from jinja2 import Template
from jinja2.sandbox import ImmutableSandboxedEnvironment

TEMPLATE_FILE = Path(__file__).with_name("chat_template.jinja")
ANSWER_START = "<|im_start|>assistant\n"


@cache
def template() -> Template:
    """The compiled chat template."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    return environment.from_string(TEMPLATE_FILE.read_text(encoding="utf-8"))


def render(messages: list[dict[str, Any]], **options: Any) -> str:
    """The text of a chat; options are tools, add_generation_prompt and enable_thinking."""
    return template().render(messages=messages, **options)


def training_pair(sample: dict[str, Any]) -> tuple[str, str]:
    """A sample as the prompt the engine would send and the text the model should write."""
    messages, thinking = sample["messages"], sample["thinking"]
    if not thinking:
        messages = [{k: v for k, v in m.items() if k != "reasoning_content"} for m in messages]
    prompt = render(
        messages[:-1], tools=sample["tools"], add_generation_prompt=True, enable_thinking=thinking
    )
    whole = render(messages, tools=sample["tools"])
    return prompt, whole.rsplit(ANSWER_START, 1)[1].rstrip("\n")
