"""Conversations by a chat template: the checkpoint's own, or one that a flag or a request gives."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, ClassVar

from dovetail.errors import ConfigError, RequestError
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.renderer import TEMPLATES, Reads, Renderer, RendererFacts, RendererInput
from dovetail_plugins.renderers._earlier_turns import EarlierTurns, FollowingRenderer
from dovetail_plugins.renderers._jinja import ChatTemplate

CODE = ("encoding/*.py", "encoding_*.py")
"""Files of checkpoints that bring code for their conversations (DeepSeek-V3.2 and V4)."""


@dataclass(frozen=True, kw_only=True)
class _Options:
    follows_earlier_turns: bool = field(
        default=True,
        metadata={
            "help": "render a conversation's tools in the order of its first turn, and its calls "
            "as the model wrote them, so that the prefix cache has them; off with several API "
            "processes"
        },
    )


class Template(FollowingRenderer):
    """Renders with a jinja template in a sandbox, and with another one if there are tools."""

    info = Info(
        summary="the checkpoint's chat template, or that of --chat-template",
        source="https://huggingface.co/docs/transformers/chat_templating",
    )
    capabilities: ClassVar[frozenset[str]] = frozenset({TEMPLATES})
    Options = _Options

    def __init__(self, options: Any, facts: RendererFacts) -> None:
        """Compile the templates. Raises: ConfigError for one that cannot be compiled"""
        self.options = options
        self._facts = facts
        if options.follows_earlier_turns:
            self.follow()
        own, given = facts.tokenizer, facts.template
        self._template = self._compiled(given or own.chat_template)
        self._for_tools = self._compiled(None if given else own.chat_templates.get("tool_use"))

    def reads(self, *, has_tools: bool) -> Reads:
        """Return what the template reads. Raises: RequestError if there is none"""
        return self._pick(has_tools=has_tools).reads

    def render(self, given: RendererInput) -> str:
        """Return the prompt. Raises: RequestError if the template fails or is too costly"""
        template = self._pick(has_tools=bool(given.tools))
        return template.render(
            {
                **given.variables,
                "messages": given.messages,
                "tools": given.tools or None,
                "documents": given.documents or None,
                "add_generation_prompt": given.adds_generation_prompt,
                "continue_final_message": given.continues_final_message,
            }
        )

    def sources(self) -> Mapping[str, str]:
        """Return the templates in use, by name."""
        named = {"default": self._template, "tool_use": self._for_tools or self._template}
        return {name: template.source for name, template in named.items() if template is not None}

    def with_template(self, source: str) -> Renderer:
        """Return a renderer for a request's own template, with the same limits. Raises:
        RequestError"""
        return _OfRequest(source, self._facts.tokenizer.special_tokens, self._earlier)

    def _compiled(self, source: str | None) -> ChatTemplate | None:
        flag = f"--chat-template {self._facts.template_file}".strip()
        where = flag if self._facts.template else "the checkpoint's chat template"
        special = self._facts.tokenizer.special_tokens
        return ChatTemplate(source, special, where=where) if source else None

    def _pick(self, *, has_tools: bool) -> ChatTemplate:
        template = (self._for_tools if has_tools else None) or self._template
        if template is None:
            raise _no_template(self._facts.path)
        return template


class _OfRequest(Template):
    """Renders with one template for all."""

    def __init__(
        self, source: str, special: Mapping[str, str], earlier: EarlierTurns | None
    ) -> None:
        self._for_tools = None
        self._earlier = earlier
        try:
            self._template = ChatTemplate(source, special)
        except ConfigError as error:
            raise RequestError(
                error.what, where="chat_template", code="chat_template_error"
            ) from error


def _no_template(path: str) -> RequestError:
    """Return the error of a model without a template, which says where its format may be."""
    code = sorted(str(file.relative_to(path)) for end in CODE for file in Path(path).glob(end))
    but = f", but code for its conversations ({', '.join(code)}), which is not run" if code else ""
    fix = "start the server with --chat-template FILE, or use /v1/completions."
    if code:
        fix = (
            "start the server with --renderer, which takes a name (`dovetail plugins list "
            "renderer` shows them) or FILE:CLASS, or with --chat-template FILE."
        )
    return RequestError(f"this model has no chat template{but}.", fix=fix, code="no_chat_template")
