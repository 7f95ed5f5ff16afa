"""Renderers for tests: plugins by name, with or without what surrounds them in the server."""

from __future__ import annotations

from typing import Any

from dovetail import registry
from dovetail.interfaces.data.spec import Selection
from dovetail.interfaces.renderer import Renderer, RendererFacts
from dovetail.interfaces.tokenizer import TokenizerFacts
from dovetail.server.generate.rendering.chat import ChatRenderer
from dovetail_testing.fakes.async_engine import FakeFacts


def known(
    facts: TokenizerFacts | None = None, template: str | None = None, *, path: str = ""
) -> RendererFacts:
    """Return a renderer's facts of a model whose tokenizer has no chat template."""
    return RendererFacts(
        path=path,
        model_type="",
        tokenizer=facts or FakeFacts(chat_template=None),
        template=template,
    )


def renderer_named(name: str, facts: RendererFacts) -> Renderer:
    """Return a renderer with its default options."""
    made: Renderer = registry.make(registry.choose("renderer", name), facts)
    return made


def chat_renderer(
    facts: TokenizerFacts | None,
    template: str | None,
    *,
    selection: Selection | None = None,
    **settings: Any,
) -> ChatRenderer:
    """Return a renderer as the server has it; `settings` are its own."""
    selection = selection or registry.choose("renderer", "template")
    return ChatRenderer(selection, known(facts, template), **settings)
