"""/v1/realtime: sessions in which sound is sent while it is recorded, and text comes back."""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

from fastapi import Depends, Request, WebSocket
from starlette.exceptions import HTTPException
from starlette.websockets import WebSocketDisconnect

from dovetail.errors import NotFound, Overloaded
from dovetail.interfaces.api import GENERATE, TRANSCRIBE, Api, Route
from dovetail.interfaces.data.media_settings import MIB
from dovetail.interfaces.plugin import Info
from dovetail.server.endpoint import App, ServerOf, problem_of, state_of
from dovetail_plugins.apis.audio.routes import AudioOf
from dovetail_plugins.apis.realtime.beta import HEADER
from dovetail_plugins.apis.realtime.protocol import (
    AnySettings,
    Settings,
    TalkAudio,
    TalkInput,
    TalkSettings,
)
from dovetail_plugins.apis.realtime.session import Closed, Limits, Session
from dovetail_plugins.apis.realtime.words import OpenAIWords

logger = logging.getLogger("dovetail.server")
PROTOCOL = "realtime"
PATH = "/v1/realtime"
FAULT = 1011
"""The code of an end that the server did not expect. Source: RFC 6455, section 7.4.1"""


@dataclass(frozen=True, slots=True, kw_only=True)
class RealtimeOptions:
    """The limits of sessions, of each API process."""

    max_sessions: int = field(
        default=64, metadata={"help": "how many sessions may be open at a time"}
    )
    session_s: float = field(default=3600.0, metadata={"help": "how long a session may last"})
    idle_s: float = field(default=600.0, metadata={"help": "how long a client may send nothing"})
    buffer_mib: int = field(
        default=24,
        metadata={"help": "MiB of sound of a session that may wait to be transcribed"},
    )


@dataclass(slots=True, kw_only=True)
class RealtimeState:
    """The sessions that are open, and their limits."""

    options: RealtimeOptions
    num_open: int = 0

    @property
    def limits(self) -> Limits:
        """Return the limits of one session."""
        given = self.options
        return Limits(
            session_s=given.session_s,
            idle_s=given.idle_s,
            buffer_bytes=given.buffer_mib * MIB,
        )

    def check_room(self) -> None:
        """Raise Overloaded if no further session may be opened."""
        if self.num_open >= self.options.max_sessions:
            raise Overloaded(f"{self.num_open} sessions are open already; try again later.")


RealtimeOf = Annotated[RealtimeState, Depends(state_of(RealtimeState))]


async def listen(socket: WebSocket, server: ServerOf, audio: AudioOf, state: RealtimeOf) -> None:
    """Write what is said in a session, and answer it with text: a WebSocket of OpenAI's realtime
    events, or of vLLM's. Query: `model`; `intent` (transcription)."""
    model = await server.model_name(socket.query_params.get("model"))
    settings = _first_settings(server, socket.query_params.get("intent"))
    if server.admission.is_draining:
        raise Overloaded("the server is shutting down.")
    state.check_room()
    state.num_open += 1
    try:
        offers = socket.scope["subprotocols"]
        await socket.accept(subprotocol=PROTOCOL if PROTOCOL in offers else None)
        session = Session(
            socket=socket,
            server=server,
            audio=audio,
            limits=state.limits,
            model=model,
            request_id=str(socket.state.request_id),
            settings=settings,
            words=OpenAIWords(),
            is_beta=socket.headers.get(HEADER[0]) == HEADER[1],
        )
        await _served(session)
    finally:
        state.num_open -= 1


def _first_settings(server: App, intent: str | None) -> AnySettings:
    """Return the settings that a session begins with. Raises: NotFound if the model cannot do what
    the client connects for"""
    if intent == "transcription" and TRANSCRIBE not in server.tasks:
        what = "the served model cannot hear, so it cannot transcribe."
        fix = "start the server with a model of speech, or with a chat model that hears."
        raise NotFound(what, where="intent", fix=fix, code="task_not_supported")
    if intent == "transcription" or GENERATE not in server.tasks:
        return Settings()
    hears = TRANSCRIBE in server.tasks
    sound = TalkInput() if hears else TalkInput(turn_detection=None)
    return TalkSettings(audio=TalkAudio(input=sound))


async def _served(session: Session) -> None:
    """Run a session to its end, which is logged. Raises nothing that an endpoint could answer."""
    logger.info("request %s: session %s began", session.request_id, session.id)
    cause = "the client left"
    try:
        try:
            await session.run()
        except Closed as end:
            cause = str(end)
            await session.send(session.words.error(problem_of(end.cause), None))
            await session.socket.close(end.code)
        except WebSocketDisconnect:
            raise
        except Exception as error:
            cause = "it failed"
            logger.error("request %s failed", session.request_id, exc_info=error)
            await session.send(session.words.error(problem_of(error), None))
            await session.socket.close(FAULT)
    except WebSocketDisconnect:
        logger.debug("request %s: the connection was lost", session.request_id)
    finally:
        logger.info(
            "request %s: session %s ended after %d turns: %s",
            session.request_id,
            session.id,
            session.num_turns,
            cause,
        )


async def refuse_http(request: Request) -> Any:
    """Refuse a request that is not for a WebSocket, or that cannot become one."""
    raise HTTPException(
        426,
        f"{request.url.path} is a WebSocket. If the client asked for one, this server lacks the "
        "package websockets (`pip install 'dovetail-llm[realtime]'`), or a proxy before it does "
        "not pass WebSockets on.",
    )


class RealtimeApi(Api):
    """Transcription while sound is recorded, and answers to it."""

    Options: ClassVar[type[Any]] = RealtimeOptions
    info = Info(
        summary="OpenAI's realtime sessions, over WebSockets: sound or text in, text out",
        source="https://platform.openai.com/docs/api-reference/realtime",
    )
    routes = (
        Route(method="WEBSOCKET", path=PATH, endpoint=listen, tasks=(TRANSCRIBE, GENERATE)),
        Route(method="GET", path=PATH, endpoint=refuse_http),
    )

    def state(self, frontend: Any) -> Any:
        """Return the count of open sessions."""
        return _state(self.options or RealtimeOptions())


@asynccontextmanager
async def _state(options: RealtimeOptions) -> AsyncIterator[RealtimeState]:
    yield RealtimeState(options=options)
