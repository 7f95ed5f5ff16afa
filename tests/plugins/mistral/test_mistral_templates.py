"""Chats become the text that mistral-common 1.13.1 writes for them, version by version."""

from __future__ import annotations

import json
from typing import Any

import pytest
from jinja2.sandbox import ImmutableSandboxedEnvironment

from dovetail_plugins.mistral._templates import template_of

TOOL = {
    "type": "function",
    "function": {"name": "add", "description": "Adds.", "parameters": {"type": "object"}},
}
CALL = {"id": "abcdefghi", "type": "function", "function": {"name": "add", "arguments": {"a": 1}}}
PLAIN: list[dict[str, Any]] = [
    {"role": "system", "content": "S"},
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": "yo"},
    {"role": "user", "content": "more"},
]
TOOLS: list[dict[str, Any]] = [
    {"role": "user", "content": "hi"},
    {"role": "assistant", "content": None, "tool_calls": [CALL]},
    {"role": "tool", "content": "3", "tool_call_id": "abcdefghi"},
    {"role": "assistant", "content": "three"},
    {"role": "user", "content": "bye"},
]
LISTED = (
    '[AVAILABLE_TOOLS][{"type": "function", "function": {"name": "add", "description": "Adds.", '
    '"parameters": {"type": "object"}}}][/AVAILABLE_TOOLS]'
)
JSON_CALL = '[TOOL_CALLS][{"name": "add", "arguments": {"a": 1}, "id": "abcdefghi"}]</s>'
FRONT = "<s>[SYSTEM_PROMPT]S[/SYSTEM_PROMPT][INST]hi[/INST]yo</s>[INST]more[/INST]"
WANTED = {
    "v1": ("<s>[INST] S\n\nhi [/INST] yo</s>[INST] more [/INST]", None),
    "v3": (
        "<s>[INST]hi[/INST]yo</s>[INST]S\n\nmore[/INST]",
        f"<s>[INST]hi[/INST]{JSON_CALL}"
        '[TOOL_RESULTS]{"content": 3, "call_id": "abcdefghi"}[/TOOL_RESULTS]three</s>'
        f"{LISTED}[INST]bye[/INST]",
    ),
    "v7": (
        FRONT,
        f"<s>[INST]hi[/INST]{JSON_CALL}[TOOL_RESULTS]abcdefghi[TOOL_CONTENT]3[/TOOL_RESULTS]"
        f"three</s>{LISTED}[INST]bye[/INST]",
    ),
    "v11": (
        FRONT,
        '<s>[INST]hi[/INST][TOOL_CALLS]add[CALL_ID]abcdefghi[ARGS]{"a": 1}</s>'
        "[TOOL_RESULTS]abcdefghi[TOOL_CONTENT]3[/TOOL_RESULTS]three</s>"
        f"{LISTED}[INST]bye[/INST]",
    ),
    "v13": (
        FRONT,
        f'<s>{LISTED}[INST]hi[/INST][TOOL_CALLS]add[ARGS]{{"a": 1}}</s>'
        "[TOOL_RESULTS]3[/TOOL_RESULTS]three</s>[INST]bye[/INST]",
    ),
}


def render(version: str, messages: list[dict[str, Any]], tools: list[Any] | None) -> str:
    """Return the prompt, rendered as Hugging Face templates are."""
    environment = ImmutableSandboxedEnvironment(trim_blocks=True, lstrip_blocks=True)
    environment.filters["tojson"] = lambda value: json.dumps(value, ensure_ascii=False)
    template = environment.from_string(template_of(version) or "")
    return template.render(messages=messages, tools=tools, bos_token="<s>", eos_token="</s>")


@pytest.mark.parametrize("version", WANTED)
def test_prompts(version: str) -> None:
    plain, with_tools = WANTED[version]
    assert render(version, PLAIN, None) == plain
    if with_tools is not None:
        assert render(version, TOOLS, [TOOL]) == with_tools


def test_a_version_of_the_future_has_none() -> None:
    assert template_of("v99") is None
