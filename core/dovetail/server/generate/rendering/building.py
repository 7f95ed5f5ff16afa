"""choose_renderer and build_renderer: what renders an engine's conversations, by the settings."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from dovetail import registry
from dovetail.config.rules.model.chat_template import WHERE, load_template, template_file
from dovetail.config.rules.selections import NO_CHOICE
from dovetail.config.sections.frontend import FrontendConfig
from dovetail.engine.client.text.no_tokenizer import NoFacts
from dovetail.errors import ConfigError
from dovetail.interfaces.data.selection import Selection
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.interfaces.renderer import TEMPLATES, RendererFacts
from dovetail.interfaces.tokenizer import Tokenizer, TokenizerFacts
from dovetail.server.generate.rendering.chat import ChatRenderer

if TYPE_CHECKING:
    from dovetail.engine.client.async_engine import AsyncEngine
    from dovetail.engine.client.offline.sync_engine import SyncClient

KIND = "renderer"


def renderer_facts(
    spec: EngineSpec | None, tokenizer: TokenizerFacts, template: str | None
) -> RendererFacts:
    """Return what a renderer may know. Without a `spec`, no model is known yet. `template` is a
    template or its file. Raises: ConfigError"""
    return RendererFacts(
        path=spec.tokenizer_path if spec else "",
        model_type=str(spec.run.model.hf_config.get("model_type", "")) if spec else "",
        tokenizer=tokenizer,
        template=load_template(template),
        template_file=str((template and template_file(template)) or ""),
    )


def choose_renderer(
    frontend: FrontendConfig, facts: RendererFacts, options: Mapping[str, Any] | None = None
) -> Selection:
    """Return the renderer that --renderer names, or "auto" finds. Raises: ConfigError, also if it
    cannot use --chat-template"""
    query = facts if frontend.renderer in NO_CHOICE else None
    chosen = registry.choose(KIND, frontend.renderer, query=query, options=options)
    if facts.template and TEMPLATES not in registry.admin.load_selection(chosen).capabilities:
        raise ConfigError(
            f'the renderer "{chosen.name}" takes no template.',
            where=WHERE,
            fix="leave it out, or use --renderer template.",
        )
    return chosen


def check_template(frontend: FrontendConfig) -> None:
    """Raise ConfigError if the renderer cannot use --chat-template, or it cannot be compiled."""
    facts = renderer_facts(None, NoFacts(), frontend.chat_template)
    registry.make(choose_renderer(frontend, facts), facts)


def build_renderer(
    engine: AsyncEngine | SyncClient,
    frontend: FrontendConfig,
    choice: Selection | None = None,
    *,
    tokenizer: Tokenizer | None = None,
    template: str | None = None,
    options: Mapping[str, Any] | None = None,
) -> ChatRenderer:
    """Return the renderer for a tokenizer, by default the engine's own. An adapter's tokenizer
    without a template uses the model's. `template` replaces --chat-template; without a `choice` one
    is made. Raises: ConfigError"""
    media, own = engine.spec.media, engine.tokenizer
    tokenizer, template = tokenizer or own, template or frontend.chat_template
    if tokenizer is not own and tokenizer.facts().chat_template is None:
        template = template or own.facts().chat_template
    facts = renderer_facts(engine.spec, tokenizer.facts(), template)
    return ChatRenderer(
        choice or choose_renderer(frontend, facts, options),
        facts,
        content_format=frontend.chat_template_content_format,
        added_texts=tokenizer.added_texts(),
        allows_control_tokens=frontend.allow_control_tokens,
        default_kwargs=frontend.default_chat_template_kwargs,
        media_kinds=frozenset() if media is None else media.part_kinds,
        media_limits=None if media is None else media.settings.limits,
        media_words=None if media is None else engine.media_words,
        interleaves_media=media is not None and media.interleaves,
    )
