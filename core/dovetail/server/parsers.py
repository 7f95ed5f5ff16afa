"""Which tool and reasoning parser this model needs: named by a flag, or found in its template.

Choosing happens once, in the parent; other API processes get the Selections.
"""

from __future__ import annotations

import logging
from typing import Any

import msgspec

from dovetail import registry
from dovetail.config.engine import Config
from dovetail.errors import BrokenPlugin, PluginError
from dovetail.interfaces.plugin import Plugin
from dovetail.interfaces.spec import Selection
from dovetail.server.state import Parsers

logger = logging.getLogger("dovetail.server")
AUTO = (None, "", "auto")


class ParserChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The chosen parsers as data."""

    tool: Selection | None = None
    reasoning: Selection | None = None


def choose_parsers(config: Config, template: str) -> ParserChoice:
    """Return the parsers for a chat template. Raises: PluginError for one named in vain."""
    return ParserChoice(
        tool=_choose(config, "tool_parser", config.frontend.tool_call_parser, template),
        reasoning=_choose(config, "reasoning_parser", config.frontend.reasoning_parser, template),
    )


def _choose(config: Config, kind: str, asked: str | None, template: str) -> Selection | None:
    options = config.plugin.options_of(kind)
    if asked not in AUTO:
        return registry.choose(kind, asked, options=options)
    found = [entry for entry in registry.entries(kind) if _fits(kind, entry.id, template)]
    if not found:
        return None
    best = max(found, key=lambda entry: _rank(kind, entry.id))
    logger.info("%s auto: %s, by the markers in the chat template", kind, best.name)
    return registry.choose(kind, best.id, options=options)


def _fits(kind: str, spec: str, template: str) -> bool:
    """Return whether a parser's markers stand in the template; a broken parser fits nothing."""
    try:
        plugin = _load(kind, spec)
    except PluginError as error:
        logger.debug("%s %s is left out: %s", kind, spec, error)
        return False
    return bool(template) and not plugin.why_not(template)


def _rank(kind: str, spec: str) -> int:
    return _load(kind, spec).auto_rank


def _load(kind: str, spec: str) -> type[Plugin]:
    plugin = registry.load(kind, spec)
    if not isinstance(plugin, type):
        raise BrokenPlugin("a parser must be a class.", where=f"{kind} {spec}")
    return plugin


def build_parsers(choice: ParserChoice) -> Parsers:
    """Return the chosen parsers, made. Raises: PluginError"""
    return Parsers(tool=_build(choice.tool), reasoning=_build(choice.reasoning))


def _build(selection: Selection | None) -> Any:
    if selection is None:
        return None
    plugin = registry.load_selection(selection)
    if not isinstance(plugin, type):
        raise BrokenPlugin("a parser must be a class.", where=selection.target)
    return plugin(registry.build_options(selection))
