"""whole_app(config, ...): the application with its own engine, and no socket.

`dovetail run-batch` calls it in its own process. The application's modules are imported while the
engine starts.
"""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Sequence
from typing import TYPE_CHECKING

from dovetail.config.config import Config
from dovetail.config.sections.frontend import FrontendConfig
from dovetail.interfaces.data.spec import EngineSpec, Selection
from dovetail.server.launch.engine_start import starting_engine
from dovetail.server.launch.startup_timer import StartupTimer

if TYPE_CHECKING:
    from fastapi import FastAPI

    from dovetail.engine.client.async_engine import AsyncEngine


@contextlib.asynccontextmanager
async def whole_app(
    config: Config,
    spec: EngineSpec,
    frontend: FrontendConfig,
    apis: Sequence[Selection],
    timer: StartupTimer,
) -> AsyncIterator[tuple[FastAPI, AsyncEngine]]:
    """Yield an application with an unbounded queue, and its engine; both end with the block.

    `frontend` replaces the config's own. Raises: as AsyncEngine.start
    """
    async with starting_engine(config, spec, timer) as starting:
        from dovetail.server.app import build_app
        from dovetail.server.families import build_apis, opened_apis
        from dovetail.server.generate.rendering.building import build_renderer
        from dovetail.server.generate.tools.parsers import build_parsers, choose_parsers

        async with opened_apis(build_apis(apis), frontend) as families:
            engine = await starting
            options = config.plugin.options_of("renderer")
            renderer = build_renderer(engine, frontend, options=options)
            parsers = build_parsers(choose_parsers(config, renderer.source), engine.tokenizer)
            app = build_app(engine, frontend, families, parsers=parsers, renderer=renderer)
            async with contextlib.aclosing(app.state.server):
                yield app, engine
