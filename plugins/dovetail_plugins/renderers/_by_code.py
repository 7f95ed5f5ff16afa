"""CodeRenderer: base of the renderers for checkpoints that bring code in place of a chat template.

None of that code is run: each renderer writes the format that it defines.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar, TypeVar

from dovetail.errors import RequestError
from dovetail.interfaces.renderer import RendererFacts, RendererInput
from dovetail_plugins.renderers._earlier_turns import FollowingRenderer

SWITCHES = ("thinking", "enable_thinking")
"""The variables that turn thinking on or off; the first one that is set decides."""

EFFORT = "reasoning_effort"
NEXT_LEVEL = {"minimal": "low", "medium": "high", "xhigh": "max"}
"""Levels of effort of OpenAI's API, and the next one above for models without them."""

SAMPLE = RendererInput(
    messages=[
        {"role": "user", "content": "..."},
        {
            "role": "assistant",
            "content": "...",
            "reasoning_content": "...",
            "tool_calls": [{"id": "1", "function": {"name": "...", "arguments": {"...": 1}}}],
        },
    ],
    tools=[{"type": "function", "function": {"name": "..."}}],
    variables={"thinking": True},
)
"""A conversation with everything that an answer can have."""

Value = TypeVar("Value")


class CodeRenderer(FollowingRenderer):
    """A renderer for checkpoints of the `model_types`, or with a file of the names in `code`."""

    auto_rank = 1
    model_types: ClassVar[tuple[str, ...]]
    code: ClassVar[tuple[str, ...]] = ()

    @classmethod
    def why_not(cls, query: RendererFacts | None) -> list[str]:
        """Return why a model is of another kind, or needs no code."""
        if query is None:
            return []
        reasons = ["there is a chat template"] if query.has_template else []
        if query.model_type not in cls.model_types and not _code(query, cls.code):
            missing = f", and {' or '.join(cls.code)} is missing" if cls.code else ""
            reasons.append(f"the model_type is not {' or '.join(cls.model_types)}{missing}")
        return reasons

    def __init__(self, options: Any, facts: RendererFacts) -> None:
        self.options = options
        self.follow()

    def sources(self) -> Mapping[str, str]:
        """Return a sample of what is written."""
        return {"default": self.render(SAMPLE)}


def code_text(facts: RendererFacts, names: tuple[str, ...]) -> str:
    """Return the text of the checkpoint's code; empty if it has none."""
    files = _code(facts, names)
    return "".join(file.read_text(encoding="utf-8", errors="replace") for file in files)


def thinks(variables: Mapping[str, Any], *, by_default: bool = False) -> bool:
    """Return whether template variables ask for thinking."""
    if variables.get(EFFORT) == "none":
        return False
    return bool(next((variables[name] for name in SWITCHES if name in variables), by_default))


def level_of(effort: Any, levels: Mapping[str, Value]) -> Value:
    """Return the level of an effort's name. Raises: RequestError"""
    name = effort if isinstance(effort, str) else ""
    found = levels.get(name, levels.get(NEXT_LEVEL.get(name, "")))
    if found is None:
        raise RequestError(
            f"{effort!r} is not an effort of this model.",
            where=EFFORT,
            fix=f"use one of {', '.join(levels)}, or none.",
            code="renderer_error",
        )
    return found


def no_role(role: str, at: int) -> RequestError:
    """Return the error of a message with a role that the format does not have."""
    return RequestError(
        f'"{role}" is not a role of this model.',
        where=f"messages[{at}].role",
        fix="use system, user, assistant or tool.",
        code="renderer_error",
    )


def _code(facts: RendererFacts, names: tuple[str, ...]) -> list[Path]:
    return [file for name in names if (file := Path(facts.path, name)).is_file()]
