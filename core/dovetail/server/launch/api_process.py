"""One API process of several, started by `api_processes`.

It reads its ChildBoot message and serves on the socket given there. It starts no engine.
"""

from __future__ import annotations

import contextlib
import logging
import socket
from functools import partial

from dovetail import registry
from dovetail.engine.client.async_engine import AsyncEngine
from dovetail.errors import DovetailError
from dovetail.observability import logging as log_setup
from dovetail.observability.supervise import supervised
from dovetail.processes import process
from dovetail.server.app import build_app
from dovetail.server.families import build_apis, opened_apis
from dovetail.server.generate.rendering.building import build_renderer
from dovetail.server.generate.tools.parsers import build_parsers
from dovetail.server.launch.api_processes import ChildBoot
from dovetail.server.launch.beats import Beat, exchange_beats
from dovetail.server.launch.event_loop import run_loop
from dovetail.server.launch.lifecycle import ServerLifecycle
from dovetail.server.launch.serve import stopped_while_starting

logger = logging.getLogger("dovetail.server")


def main() -> int:
    """Serve as the boot message says; return the exit status."""
    boot = process.read_boot(ChildBoot)
    log_setup.configure(
        boot.spec.log_level,
        uvicorn_level=registry.admin.value_of("uvicorn_log_level", boot.frontend.uvicorn_log_level),
        config=boot.spec.log_config,
        form=boot.spec.log_format,
        prefix=boot.spec.log_prefix,
        is_wanted=boot.spec.sets_up_log,
    )
    try:
        return run_loop(_serve(boot), stopped_while_starting)
    except DovetailError as error:
        logger.error("%s", error)
        return 1


async def _serve(boot: ChildBoot) -> int:
    async with contextlib.AsyncExitStack() as stack:
        channel = stack.enter_context(process.open_channel())
        apis = await stack.enter_async_context(opened_apis(build_apis(boot.apis), boot.frontend))
        engine = await AsyncEngine.attach(boot.addresses, boot.spec, process=boot.process)
        stack.push_async_callback(engine.shutdown)
        app = build_app(
            engine,
            boot.frontend,
            apis,
            renderer=build_renderer(engine, boot.frontend, boot.renderer),
            parsers=build_parsers(boot.parsers, engine.tokenizer),
            max_queued_requests=boot.max_queued,
            in_force=boot.in_force,
        )
        stack.push_async_callback(app.state.server.aclose)
        sock = socket.socket(fileno=boot.socket_fd)

        def beat() -> Beat:
            return Beat(given_up=engine.given_up(), wanted=engine.take_wanted())

        def begin() -> None:
            beats = supervised("beats", partial(exchange_beats, channel, beat, engine.follow))
            stack.callback(beats.cancel)

        return await ServerLifecycle(app, engine, boot.frontend).run(sock, begin)
