"""The settings in force, with what a server chooses for its model, built by the process that
resolved the configuration."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from dovetail.config.config import Config
from dovetail.config.report.in_force import InForce, in_force
from dovetail.config.report.show import DEFAULT, MODEL
from dovetail.interfaces.data.spec import EngineSpec, Selection
from dovetail.interfaces.tokenizer import TokenizerFacts
from dovetail.server.generate.rendering.chat import ChatRenderer
from dovetail.server.generate.tools.parsers import ParserChoice
from dovetail.server.http.addresses import DEFAULT_HOST
from dovetail.server.launch.engine_start import max_queued

if TYPE_CHECKING:
    from dovetail.engine.client.async_engine import AsyncEngine


@dataclass(frozen=True, slots=True, kw_only=True)
class Preview:
    """The facts of the tokenizer, and what reads and writes the text of a chat."""

    facts: TokenizerFacts
    renderer: ChatRenderer
    parsers: ParserChoice


def settings_in_force(
    config: Config,
    spec: EngineSpec,
    engine: AsyncEngine,
    renderer: ChatRenderer,
    parsers: ParserChoice,
    apis: Iterable[Selection],
) -> InForce:
    """Return the settings and plugins in force, secrets masked."""
    ahead = Preview(facts=engine.tokenizer.facts(), renderer=renderer, parsers=parsers)
    chosen = (renderer.selection, parsers.tool, parsers.reasoning, *apis)
    return in_force(config, spec, found(config, spec, ahead), filter(None, chosen))


def found(config: Config, spec: EngineSpec, ahead: Preview) -> dict[str, tuple[Any, str]]:
    """Return the HTTP flags that may be left open: (value, who decided it)."""
    by_model = "the model's" if ahead.facts.chat_template else None
    template = config.frontend.chat_template or by_model
    return {
        "renderer": (ahead.renderer.selection.name, MODEL),
        "chat_template": (template, MODEL if by_model else DEFAULT),
        "tool_call_parser": _named(ahead.parsers.tool),
        "reasoning_parser": _named(ahead.parsers.reasoning),
        "host": (config.frontend.host or DEFAULT_HOST, DEFAULT),
        "max_num_queued_reqs": (max_queued(config, spec), DEFAULT),
    }


def _named(selection: Selection | None) -> tuple[str | None, str]:
    return (None, DEFAULT) if selection is None else (selection.name, MODEL)
