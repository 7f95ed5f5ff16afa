"""build_renderer: the renderer of an engine's conversations, configured by the settings."""

from __future__ import annotations

from typing import TYPE_CHECKING

from dovetail.config.rules.model.chat_template import load_template
from dovetail.config.sections.frontend import FrontendConfig
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail.server.generate.template.chat import ChatRenderer

if TYPE_CHECKING:
    from dovetail.engine.client.async_engine import AsyncEngine
    from dovetail.engine.client.offline.sync_engine import SyncClient


def build_renderer(
    engine: AsyncEngine | SyncClient,
    frontend: FrontendConfig,
    tokenizer: Tokenizer | None = None,
    template: str | None = None,
) -> ChatRenderer:
    """Return the renderer for a tokenizer, by default the engine's own. An adapter's tokenizer
    without a template uses the model's. `template` replaces --chat-template. Raises: ConfigError"""
    media, own = engine.spec.media, engine.tokenizer
    tokenizer = tokenizer or own
    facts, override = tokenizer.facts(), load_template(template or frontend.chat_template)
    if tokenizer is not own and facts.chat_template is None:
        override = override or own.facts().chat_template
    return ChatRenderer(
        facts,
        override=override,
        content_format=frontend.chat_template_content_format,
        added_texts=tokenizer.added_texts(),
        allows_control_tokens=frontend.allow_control_tokens,
        default_kwargs=frontend.default_chat_template_kwargs,
        media_kinds=frozenset() if media is None else media.part_kinds,
        media_limits=None if media is None else media.settings.limits,
        media_words=None if media is None else engine.media_words,
        interleaves_media=media is not None and media.interleaves,
    )
