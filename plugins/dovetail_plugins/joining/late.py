"""`dovetail serve --join HOST:PORT`: an engine for a server that runs, with its settings."""

from __future__ import annotations

import logging
import secrets
from collections.abc import Mapping
from typing import Any

import msgspec

from dovetail.config.config import DEMO_ORIGIN, Config
from dovetail.config.rules.parallel.joining import (
    DEFAULT_PORT,
    Meeting,
    meeting_of,
)
from dovetail.engine.faults import error_of
from dovetail.errors import ConfigError
from dovetail.processes.handshake import receive_message, respond, send_message
from dovetail_plugins.joining.connections import NotListening, open_connection, talking_to_server
from dovetail_plugins.joining.peers import SETTINGS, JoinReply, JoinRequest

logger = logging.getLogger(__name__)

FLAG = "--join"


def run(config: Config) -> int:
    """Run an engine for the server at --join until one of the two ends; return the exit status, as
    `headless.run`. Raises: ConfigError"""
    from dovetail_plugins.joining.headless import run as run_headless

    return run_headless(as_headless(config))


def as_headless(config: Config) -> Config:
    """Return the settings of a headless process, asked of the server: of its engines, the first
    that are not there. What was given here counts more. Raises: ConfigError"""
    meeting = _meeting(config)
    reply = ask(meeting)
    theirs: Mapping[str, Any] = msgspec.msgpack.decode(reply.settings)
    own = {
        name: config.value(name)
        for name, origin in config.origins.items()
        if origin != DEMO_ORIGIN and name != "join"
    }
    count = int(own.get("data_parallel_size_local", 1))
    logger.info("taking the place of engine %d of the server at %s", reply.free[0], meeting.name)
    return Config.from_fields(
        {
            **theirs,
            **own,
            "headless": True,
            "data_parallel_address": meeting.host,
            "data_parallel_rpc_port": meeting.port,
            "data_parallel_secret": meeting.secret.decode(),
            "data_parallel_start_rank": reply.free[0],
            "data_parallel_size_local": count,
        }
    )


def ask(meeting: Meeting) -> JoinReply:
    """Return the settings of the server at an address, and the numbers of the engines that are not
    there. Raises: ConfigError"""
    request = JoinRequest(kind=SETTINGS, number=0, launch=secrets.token_hex(8))
    try:
        with (
            talking_to_server(meeting, FLAG),
            open_connection(meeting.host, meeting.port, meeting.limit_s, "the server") as found,
        ):
            respond(found, meeting.secret)
            send_message(found, request)
            reply = receive_message(found, JoinReply)
    except NotListening as error:
        raise ConfigError(
            f"no server listens at {meeting.name}: {error}.",
            where=FLAG,
            fix="give what the server has as --data-parallel-address and --data-parallel-rpc-port "
            f"({DEFAULT_PORT} if it has none).",
        ) from error
    if reply.refusal is not None:
        raise error_of(reply.refusal)
    return reply


def _meeting(config: Config) -> Meeting:
    """Return the server's address. Raises: ConfigError"""
    host, _, port = str(config.parallel.join).rpartition(":")
    host = host.removeprefix("[").removesuffix("]")
    if not host or not port.isdecimal() or not 0 < int(port) < 65536:
        raise ConfigError(
            f'"{config.parallel.join}" is not HOST:PORT.', where=FLAG, fix="write 10.0.0.1:29550."
        )
    at = {"data_parallel_address": host, "data_parallel_rpc_port": int(port)}
    return meeting_of(config.with_fields(at, origin="default").parallel)
