"""Renderer: a conversation becomes the text of a prompt, by a template or by code.

Core hands over messages in one form, and does around it what is the same for every renderer: it
places media, finds control words that clients wrote, cuts a final message that is to be continued,
and reports what the renderer does not read. It tokenizes the text, too.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Container, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from dovetail.errors import RequestError
from dovetail.interfaces.plugin import Plugin
from dovetail.interfaces.tokenizer import TokenizerFacts

TEMPLATES = "templates"
"""The capability of renderers that take templates from flags and requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RendererFacts:
    """What is known of a model: the folder of its tokenizer, config.json's `model_type`, and the
    facts of its tokenizer. `template`, read from `template_file` if that is not empty, replaces the
    checkpoint's own: a renderer without the capability "templates" gets none."""

    path: str
    model_type: str
    tokenizer: TokenizerFacts
    template: str | None = None
    template_file: str = ""

    @property
    def has_template(self) -> bool:
        """Return whether there is a chat template, given or the checkpoint's own."""
        return bool(self.template or self.tokenizer.chat_template)


class SpelledArguments(dict[str, Any]):
    """The arguments of a call, with the JSON text in which the model wrote them."""

    def __init__(self, arguments: Mapping[str, Any], text: str) -> None:
        super().__init__(arguments)
        self.text = text


@dataclass(frozen=True, slots=True, kw_only=True)
class RendererInput:
    """What a prompt is made of.

    Each message is a dict with a `role` and a `content`: text, or a list of parts if the renderer
    reads those ({"type": "text", "text": ...}, {"type": "image"}). It may have `name`,
    `tool_call_id`, `reasoning_content` (also as `reasoning`), `tool_calls` (OpenAI's form, the
    arguments a dict), and the further fields that the renderer reads. `tools` and `documents` have
    OpenAI's form. `variables` are the template variables that flags and requests set, such as
    `enable_thinking`, and that the renderer reads. `adds_generation_prompt`: the opening of
    the model's turn is to follow the last message.
    """

    messages: Sequence[dict[str, Any]]
    tools: Sequence[dict[str, Any]] = ()
    documents: Sequence[dict[str, Any]] = ()
    variables: Mapping[str, Any] = field(default_factory=dict)
    adds_generation_prompt: bool = True
    continues_final_message: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Reads:
    """What a renderer reads, writes and looks for.

    `content` is the form of a message's content: "string", or "openai" for a list of parts, which
    may still be text if `takes_text`. `roles` are those besides system, user, assistant and tool;
    `fields` the further fields of messages; `variables` the variables (with "documents" it has a
    place for them). `writes` are added tokens of the vocabulary that it writes beside the special
    ones: in the text of clients they are plain text. An answer that is sent back may have them,
    except `structure`. `looks_for` are texts that it searches in messages, which clients may write.
    """

    content: str = "string"
    takes_text: bool = True
    roles: Container[str] = frozenset()
    fields: Container[str] = frozenset()
    variables: Container[str] = frozenset()
    writes: Container[str] = frozenset()
    structure: Container[str] = frozenset()
    looks_for: frozenset[str] = frozenset()


class Renderer(Plugin):
    """Shared by all requests and called from several threads; immutable after construction."""

    interface_version: ClassVar[int] = 1
    known_capabilities: ClassVar[Mapping[str, str]] = {
        TEMPLATES: "renders with the template that --chat-template or a request gives",
    }

    @classmethod
    def why_not(cls, query: RendererFacts | None) -> list[str]:
        """Return why this does not render the conversations of a model."""
        return []

    @abstractmethod
    def __init__(self, options: Any, facts: RendererFacts) -> None:
        """Prepare for a model. Raises: ConfigError"""

    @abstractmethod
    def reads(self, *, has_tools: bool) -> Reads:
        """Return what it reads of a conversation with or without tools. Raises: RequestError if it
        can render none"""

    @abstractmethod
    def render(self, given: RendererInput) -> str:
        """Return the text of the prompt, which is the same for the same conversation. Does not
        change it. Raises: RequestError for a conversation that it cannot render"""

    def note_calls(self, arguments: Mapping[str, str]) -> None:
        """Note the arguments that the model wrote in an answer's calls, by the calls' ids."""

    def settled(self, given: RendererInput) -> RendererInput:
        """Return a conversation, about to be rendered, with what its client now sends in another
        order or spelling as earlier turns had it, so that the prompt begins like the last one: the
        tools, and arguments (SpelledArguments). The default changes nothing."""
        return given

    def sources(self) -> Mapping[str, str]:
        """Return the texts that show the format, by name ("default", "tool_use"): templates, or a
        sample of what is written. The model's parsers are chosen by the markers in them."""
        return {}

    def with_template(self, source: str) -> Renderer:
        """Return a renderer for the template of a request. Raises: RequestError"""
        raise RequestError(
            "the conversations of this model are not rendered by a template.",
            where="chat_template",
            fix="leave it out, or start the server with --renderer template.",
            code="unsupported_field",
        )
