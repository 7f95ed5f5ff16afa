"""Choice of the model's tool and reasoning parsers: by a flag, or by the chat template.

It happens once, in the parent; other API processes receive the Selections.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import msgspec

from dovetail import registry
from dovetail.config.config import Config
from dovetail.config.sections.frontend import NO_PARSER
from dovetail.errors import BrokenPlugin, PluginError
from dovetail.interfaces.data.spec import Selection
from dovetail.interfaces.data.text import Layout, Tag
from dovetail.interfaces.plugin import Plugin
from dovetail.interfaces.reasoning_parser import ReasoningParser
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail.interfaces.tool_parser import ToolParser

logger = logging.getLogger("dovetail.server")
AUTO = (None, "", "auto")
MIN_MARKER_CHARS = 3
"""Shorter markers ("{", "[") occur in any template."""
MAX_TEXTS_SAID = 4
MIN_TOKEN_CHARS = 3
"""Shorter added tokens, of blanks for example, also occur in ordinary text."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Parsers:
    """The parsers chosen for this model, or None. `special_texts` are the texts that are always one
    token of the vocabulary."""

    tool: ToolParser | None = None
    reasoning: ReasoningParser | None = None
    special_texts: frozenset[str] = frozenset()
    special_starts: frozenset[str] = field(init=False)
    """The call markers that begin with such a token. They never occur in ordinary text."""

    def __post_init__(self) -> None:
        words = tuple(text for text in self.special_texts if len(text) >= MIN_TOKEN_CHARS)
        starts = [markers.start for markers in self.tool.markers] if self.tool else []
        special = frozenset(start for start in starts if start.startswith(words))
        object.__setattr__(self, "special_starts", special)

    def bound(self, tokenizer: Tokenizer) -> Parsers:
        """Return the same parsers for another tokenizer. Raises: ConfigError"""
        return Parsers(
            tool=None if self.tool is None else self.tool.bound(tokenizer),
            reasoning=None if self.reasoning is None else self.reasoning.bound(tokenizer),
            special_texts=tokenizer.added_texts(),
        )


class ParserChoice(msgspec.Struct, frozen=True, kw_only=True):
    """The chosen parsers as data."""

    tool: Selection | None = None
    reasoning: Selection | None = None


def choose_parsers(config: Config, template: str) -> ParserChoice:
    """Return the parsers for a chat template. Raises: PluginError for an unknown name"""
    return ParserChoice(
        tool=_choose(config, "tool_parser", config.frontend.tool_call_parser, template),
        reasoning=_choose(config, "reasoning_parser", config.frontend.reasoning_parser, template),
    )


def _choose(config: Config, kind: str, requested: str | None, template: str) -> Selection | None:
    if requested == NO_PARSER:
        return None
    options = config.plugin.options_of(kind)
    if requested not in AUTO:
        return registry.choose(kind, requested, options=options)
    candidates = [
        (entry.name, entry.id, _mentioned(_load(kind, entry.id), template))
        for entry in registry.entries(kind)
        if _fits(kind, entry.id, template)
    ]
    if not candidates:
        logger.info("%s auto: none, because the chat template uses no known syntax", kind)
        return None
    candidates.sort(key=lambda fit: _preference(kind, *fit))
    name, spec, texts = candidates[0]
    logger.info("%s", _reason(kind, name, texts, [other for other, _, _ in candidates[1:]]))
    return registry.choose(kind, spec, options=options)


def _preference(kind: str, name: str, spec: str, texts: Sequence[str]) -> tuple[Any, ...]:
    """Return the sort key of fitting parsers, best first. Among equal ranks the parser with the
    most text in the template wins. Among several names of one parser, `auto_name` or its module's
    name wins."""
    plugin = _load(kind, spec)
    own = getattr(plugin, "auto_name", "") or plugin.__module__.rpartition(".")[2]
    return -plugin.auto_rank, -sum(map(len, texts)), name != own, name


def _reason(kind: str, name: str, texts: Sequence[str], others: Sequence[str]) -> str:
    """Return one log line: the chosen parser, the deciding markers, and the alternatives."""
    by = ", ".join(texts[:MAX_TEXTS_SAID]) or "what it says of calls"
    line = f"{kind} auto: {name}, by {by} in the chat template"
    return f"{line} (also fit: {', '.join(others)})" if others else line


def _mentioned(plugin: type[Plugin], template: str) -> list[str]:
    """Return the texts of a parser's syntax that occur in the template, longest first."""
    texts: set[str] = set()
    if issubclass(plugin, ToolParser):
        texts = {text for m in plugin.markers for text in (m.start, m.end)}
        texts |= {*plugin.inner, *_texts(plugin.layout)}
    elif issubclass(plugin, ReasoningParser):
        texts = {plugin.markers.start, plugin.markers.end, *_texts(plugin.layout)}
    markers = {text.strip() for text in texts if len(text.strip()) >= MIN_MARKER_CHARS}
    return sorted((text for text in markers if text in template), key=lambda t: (-len(t), t))


def _texts(layout: Layout) -> list[str]:
    return [word.start if isinstance(word, Tag) else word for word in layout]


def _fits(kind: str, spec: str, template: str) -> bool:
    """Return whether a parser fits the template. A broken parser never fits."""
    try:
        plugin = _load(kind, spec)
    except PluginError as error:
        logger.debug("%s %s is left out: %s", kind, spec, error)
        return False
    reasons = plugin.why_not(template) if template else ["there is no chat template"]
    if reasons:
        logger.debug("%s %s is left out: %s", kind, spec, "; ".join(reasons))
    return not reasons


def _load(kind: str, spec: str) -> type[Plugin]:
    plugin = registry.load(kind, spec)
    if not isinstance(plugin, type):
        raise BrokenPlugin("a parser must be a class.", where=f"{kind} {spec}")
    return plugin


def build_parsers(choice: ParserChoice, tokenizer: Tokenizer) -> Parsers:
    """Return the chosen parsers, created for this tokenizer. Raises: ConfigError"""
    return Parsers(
        tool=_build(choice.tool, tokenizer),
        reasoning=_build(choice.reasoning, tokenizer),
        special_texts=tokenizer.added_texts(),
    )


def _build(selection: Selection | None, tokenizer: Tokenizer) -> Any:
    if selection is None:
        return None
    return registry.make(selection).bound(tokenizer)
