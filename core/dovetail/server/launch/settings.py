"""The settings in force, built by the process that resolved the configuration."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING

from dovetail.config.config import Config
from dovetail.config.report.in_force import InForce, in_force
from dovetail.interfaces.data.spec import EngineSpec, Selection
from dovetail.server.generate.rendering.chat import ChatRenderer
from dovetail.server.generate.tools.parsers import ParserChoice
from dovetail.server.launch.preview import Preview, found

if TYPE_CHECKING:
    from dovetail.engine.client.async_engine import AsyncEngine


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
