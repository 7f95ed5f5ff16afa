"""Conversations by a chat template: the checkpoint's own, or one that a flag or a request gives.

A template is in Jinja, or in Go's language as Ollama's are; its text shows which.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, ClassVar

from dovetail.errors import ConfigError, RequestError
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.renderer import TEMPLATES, Reads, Renderer, RendererFacts, RendererInput
from dovetail.interfaces.tokenizer import TokenizerFacts
from dovetail_plugins.renderers._earlier_turns import EarlierTurns, FollowingRenderer
from dovetail_plugins.renderers._jinja import ChatTemplate, Mentions
from dovetail_plugins.renderers._opening import Opening
from dovetail_plugins.renderers.go_template.template import GoTemplate, beginning, is_go

CODE = ("encoding/*.py", "encoding_*.py")
"""Files of checkpoints that bring code for their conversations (DeepSeek-V3.2 and V4)."""
AnyTemplate = ChatTemplate | GoTemplate
SAMPLE = "~0~"
"""The text of every message of a conversation that shows how a template writes turns."""


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
    system: str = field(
        default="", metadata={"help": "system message of conversations that bring none"}
    )
    messages: tuple[dict[str, str], ...] = field(
        default=(),
        metadata={
            "help": "messages (with role and content) that every conversation begins with, after "
            "its system message: examples for the model"
        },
    )


class Template(FollowingRenderer):
    """Renders with a template in a sandbox, and with another one if there are tools."""

    info = Info(
        summary="the checkpoint's chat template, or that of --chat-template: Jinja, or Go as in "
        "Ollama",
        source="https://huggingface.co/docs/transformers/chat_templating",
    )
    capabilities: ClassVar[frozenset[str]] = frozenset({TEMPLATES})
    Options = _Options

    def __init__(self, options: Any, facts: RendererFacts) -> None:
        """Compile the templates. Raises: ConfigError for one that cannot be compiled, and for
        messages to begin with that are none"""
        self.options = options
        self._facts = facts
        self._opening = Opening(system=options.system, messages=options.messages)
        if options.follows_earlier_turns:
            self.follow()
        own, given = facts.tokenizer, facts.template
        self._template = self._compiled(given or own.chat_template)
        self._for_tools = self._compiled(None if given else own.chat_templates.get("tool_use"))

    def reads(self, *, has_tools: bool) -> Reads:
        """Return what the template reads. Raises: RequestError if there is none"""
        return self._pick(has_tools=has_tools).reads

    def settled(self, given: RendererInput) -> RendererInput:
        """Return a conversation as its earlier turns were, with what all begin with."""
        reads = self.reads(has_tools=bool(given.tools))
        return self._opening.before(super().settled(given), reads)

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
        return _OfRequest(source, self._facts.tokenizer, self._opening, self._earlier)

    def _compiled(self, source: str | None) -> AnyTemplate | None:
        flag = f"--chat-template {self._facts.template_file}".strip()
        where = flag if self._facts.template else "the checkpoint's chat template"
        return _compiled(source, self._facts.tokenizer, where) if source else None

    def _pick(self, *, has_tools: bool) -> AnyTemplate:
        template = (self._for_tools if has_tools else None) or self._template
        if template is None:
            raise _no_template(self._facts.path)
        return template


class _OfRequest(Template):
    """Renders with one template for all."""

    def __init__(
        self,
        source: str,
        tokenizer: TokenizerFacts,
        opening: Opening,
        earlier: EarlierTurns | None,
    ) -> None:
        self._for_tools = None
        self._opening = opening
        self._earlier = earlier
        try:
            self._template = _compiled(source, tokenizer, None)
        except ConfigError as error:
            raise RequestError(
                error.what, where="chat_template", code="chat_template_error"
            ) from error


def _compiled(source: str, tokenizer: TokenizerFacts, where: str | None) -> AnyTemplate:
    """Return a template in the language that it is written in. Raises: ConfigError"""
    special = tokenizer.special_tokens
    template: AnyTemplate
    if is_go(source):
        begins = beginning(special, tokenizer.chat_template)
        template = GoTemplate(source, begins=begins, where=where)
    else:
        template = ChatTemplate(source, special, where=where)
    template.reads = replace(template.reads, structure=Mentions(_turns(template)))
    return template


def _turns(template: AnyTemplate) -> str:
    """Return what a template writes around two turns; nothing if it refuses such a conversation."""
    reads = template.reads
    is_text = reads.content == "string" or reads.takes_text
    content = SAMPLE if is_text else [{"type": "text", "text": SAMPLE}]
    messages = [{"role": role, "content": content} for role in ("user", "assistant", "user")]
    variables: dict[str, Any] = {"messages": messages, "tools": None, "documents": None}
    try:
        text = template.render(
            {**variables, "add_generation_prompt": True, "continue_final_message": False}
        )
    except RequestError:
        return ""
    return text.rpartition(SAMPLE)[0]


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
