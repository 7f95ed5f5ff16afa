"""Thinking as the checkpoint's own response template describes it.

Source: transformers' documentation of response templates (`parse_response`).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Self

from dovetail.errors import ConfigError
from dovetail.interfaces.data.text import Markers
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail_plugins.reasoning_parsers._think import ThinkTags
from dovetail_plugins.syntax.response_template import (
    EXAMPLE,
    REASONING,
    TemplateField,
    TemplateOptions,
    ends_of_content,
    template_of,
)


class ResponseTemplate(ThinkTags):
    """Thinking lies between the fixed texts that the template gives to its field."""

    info = Info(
        summary="thinking as the checkpoint's response_template describes it",
        source="https://huggingface.co/docs/transformers/chat_response_parsing",
    )
    Options = TemplateOptions

    def __init__(self, options: TemplateOptions, template: Mapping[str, Any] = EXAMPLE) -> None:
        """Raises: ConfigError for a template whose thinking cannot be found in a text"""
        super().__init__(options)
        self.markers = _markers(template)  # type: ignore[misc]
        self.layout = ends_of_content(template)  # type: ignore[misc]

    @classmethod
    def why_not(cls, query: Any) -> list[str]:
        """Return why a chat template (str) does not ask for this syntax: none names it."""
        return [] if query is None else ["it is used only by name"]

    def bound(self, tokenizer: Tokenizer) -> Self:
        """Return the parser for a checkpoint's template. Raises: ConfigError"""
        return type(self)(self.options, template_of(self.options, tokenizer))


def _markers(template: Mapping[str, Any]) -> Markers:
    """Return the texts around the thinking. Raises: ConfigError"""
    fields = template.get("fields", {})
    name = next((name for name in REASONING if name in fields), None)
    if name is None:
        raise ConfigError(
            "the template has no field for the model's thinking.",
            where="response_template",
            fix="leave --reasoning-parser out.",
        )
    field = TemplateField(template, name)
    opening, closing = field.opening, field.closing
    if not (opening and closing and len(opening.texts) == len(closing.texts) == 1):
        raise ConfigError(
            "the template does not name one text that opens thinking and one that closes it.",
            where=f"response_template, {name}",
        )
    return Markers(start=opening.texts[0], end=closing.texts[0], may_reopen=field.repeats)
