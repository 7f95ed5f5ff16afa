"""run(config, models): check every model, bind, load, listen; return the exit status."""

from __future__ import annotations

import logging
import socket
from collections.abc import Sequence
from functools import partial

from dovetail.config.config import Config
from dovetail.config.rules.parallel.placement import launched
from dovetail.errors import ConfigError
from dovetail.interfaces.api import Api
from dovetail.processes.process import taken
from dovetail.server.families import build_apis, choose_apis
from dovetail.server.launch.event_loop import run_loop
from dovetail.server.launch.lifecycle import ServerLifecycle
from dovetail.server.launch.records import record_removed, write_record
from dovetail.server.launch.serve import (
    set_process_up,
    stopped_while_starting,
    with_checked_frontend,
)
from dovetail.server.launch.sockets import listening, url_of
from dovetail.server.launch.startup_timer import StartupTimer
from dovetail_plugins.gateway.app import build_gateway
from dovetail_plugins.gateway.catalogue import Catalogue
from dovetail_plugins.gateway.entries import ANY, ModelEntry, entries_of, offers_any
from dovetail_plugins.gateway.fleet import Fleet
from dovetail_plugins.gateway.memory_need import need_of
from dovetail_plugins.gateway.model import GatewayModel
from dovetail_plugins.gateway.server import MODULE, ModelServer, start_next

logger = logging.getLogger("dovetail_plugins.gateway")


def run(config: Config, models: Sequence[str | None]) -> int:
    """Serve several models until a signal arrives. Raises: ConfigError"""
    set_process_up(config)
    timer = StartupTimer()
    config = with_checked_frontend(config)
    entries = checked_entries(config, models)
    with record_removed(), listening(config.frontend) as sock:
        with timer.time("config"):
            apis = build_apis(choose_apis(config))
            checked = [_checked(entry) for entry in entries]
        _tell_needs(checked)
        serving = _serve(config, checked, list(apis.values()), sock, timer)
        try:
            return run_loop(serving, stopped_while_starting)
        finally:
            taken(MODULE)


def checked_entries(config: Config, models: Sequence[str | None]) -> tuple[ModelEntry, ...]:
    """Return the models to serve. Raises: ConfigError"""
    if launched(config.parallel) is not None:
        raise ConfigError(
            "a launcher starts the ranks of one model.",
            where="--models" if config.gateway.models else "MODEL",
            fix="serve several models without a launcher; each may have its own ranks.",
        )
    return entries_of(config, models)


def _checked(entry: ModelEntry) -> GatewayModel:
    """Return an unloaded model. Raises: ConfigError that names it"""
    try:
        return GatewayModel(entry, need_of(entry))
    except ConfigError as error:
        error.where = f"{error.where} of {entry.name}" if error.where else entry.name
        raise


def _tell_needs(models: Sequence[GatewayModel]) -> None:
    for model in models:
        size = model.need.num_bytes / 2**20
        logger.info("%s: needs %.4g MiB for weights and KV cache", model.name, size)


def fleet_of(config: Config, models: Sequence[GatewayModel]) -> Fleet:
    """Return the fleet of the models, configured by the flags."""
    fleet: Fleet = Fleet(
        models,
        start=partial(ModelServer, when_ready=lambda: _start_next(fleet)),
        wait_s=config.gateway.load_wait_s,
        limit_bytes=config.gateway.models_memory_bytes,
        max_loaded=config.gateway.max_loaded_models,
        catalogue=Catalogue(config) if offers_any(config) else None,
    )
    return fleet


def _start_next(fleet: Fleet) -> None:
    """Start the next model's server if a model may still be loaded."""
    if fleet.catalogue is not None or not all(one.is_resident for one in fleet.models):
        start_next()


async def _serve(
    config: Config,
    models: Sequence[GatewayModel],
    apis: Sequence[Api],
    sock: socket.socket,
    timer: StartupTimer,
) -> int:
    fleet = fleet_of(config, models)

    def tell_ready() -> None:
        url = url_of(sock, has_tls=config.frontend.ssl_certfile is not None)
        names = [n for m in models for n in m.entry.names]
        others = ["every model that `dovetail list` shows"] if fleet.catalogue else []
        write_record(url, names or [ANY], "")
        logger.info("serving %s", ", and ".join([", ".join(names)] * bool(names) + others))
        logger.info("ready in %.1f s at %s", timer.total_s(), url)

    async with fleet:
        await fleet.load_at_start()
        _start_next(fleet)
        app = build_gateway(fleet, config.frontend, apis, config.gateway)
        return await ServerLifecycle(app, fleet, config.frontend).run(sock, tell_ready)
