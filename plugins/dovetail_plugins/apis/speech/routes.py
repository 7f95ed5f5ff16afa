"""POST /v1/audio/speech and GET /v1/audio/voices: the sound of a text, streamed as it is made."""

from __future__ import annotations

import asyncio
import base64
from collections.abc import AsyncGenerator, AsyncIterator, Mapping
from contextlib import (
    AbstractContextManager,
    AsyncExitStack,
    aclosing,
    asynccontextmanager,
    nullcontext,
)
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar

import msgspec
import numpy as np
from fastapi import Depends, Request
from starlette.responses import Response

from dovetail.engine.client.results.outputs import numbers
from dovetail.engine.context_length import PROMPT
from dovetail.errors import RequestError
from dovetail.interfaces.api import Api, Route
from dovetail.interfaces.data.pooling_params import SPEAK, PoolingParams, SpeechParams
from dovetail.interfaces.data.pooling_spec import SpeechSpec
from dovetail.interfaces.plugin import Info
from dovetail.server.endpoint import (
    HEADER,
    App,
    EventStream,
    Framing,
    ModelText,
    Problem,
    RequestEnd,
    ServerOf,
    StreamHead,
    data_frame,
    header_value,
    in_words_of,
    logged,
    state_of,
)
from dovetail_plugins.apis.speech.formats import FORMATS, SoundWriter, sound_writer, wav_header
from dovetail_plugins.apis.speech.protocol import SpeechRequest, SpeechUsage, Voices
from dovetail_plugins.apis.speech.sentences import MAX_CHARS, sentences

SHOWN_VOICES = 20
"""How many voices an error lists."""
SEEDS = 1 << 63


@dataclass(frozen=True, slots=True, kw_only=True)
class SpeechOptions:
    """Names for voices."""

    voices: Mapping[str, str | int] = field(
        default_factory=dict,
        metadata={"help": "further names of voices: the name -> the model's own name"},
    )


@dataclass(frozen=True, slots=True)
class SpeechState:
    """The operator's names of voices -> the model's own."""

    names: Mapping[str, str]


StateOf = Annotated[SpeechState, Depends(state_of(SpeechState))]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spoken:
    """A text that is spoken: the tokens of its sentences, and how."""

    server: App
    request_id: str
    pieces: tuple[tuple[int, ...], ...]
    params: SpeechParams
    writer: SoundWriter
    adapter: str

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield the file, a sentence at a time. Raises: RequestError, RequestFault, EngineDead"""
        with self._logged() as end:
            count = 0
            for which, ids in enumerate(self.pieces):
                samples = await self._samples(which, ids)
                count += len(samples)
                end.tokens = f"{count / speech_of(self.server).rate_hz:.2f} s of sound"
                if chunk := await asyncio.to_thread(self.writer.push, samples):
                    yield chunk
            if chunk := await asyncio.to_thread(self.writer.finish):
                yield chunk
            end.cause = "stop"

    def _logged(self) -> AbstractContextManager[RequestEnd]:
        """Return what logs the request, if that is wanted."""
        if not self.server.frontend.enable_log_requests:
            return nullcontext(RequestEnd())
        tokens = f"{self.usage.input_tokens} tokens"
        return logged(self.request_id, f"{tokens} to speak in {len(self.pieces)} sentences")

    async def _samples(self, which: int, ids: tuple[int, ...]) -> np.ndarray:
        """Return the samples of a sentence. Its number changes the noise. Shapes: [S]"""
        seed = (self.params.seed + which) % SEEDS
        speech = msgspec.structs.replace(self.params, seed=seed)
        with in_words_of({PROMPT: "input"}):
            output = await self.server.engine.pool(
                ids,
                PoolingParams(task=SPEAK, speech=speech),
                f"{self.request_id}-{which}",
                adapter=self.adapter,
            )
        assert output.pooled is not None
        return numbers(output.pooled)

    @property
    def usage(self) -> SpeechUsage:
        """Return the number of tokens that were spoken."""
        count = sum(map(len, self.pieces))
        return SpeechUsage(input_tokens=count, total_tokens=count)


async def create_speech(
    body: SpeechRequest, request: Request, server: ServerOf, state: StateOf
) -> Any:
    """Return the sound of a text, as a file that is streamed, or as events."""
    text, model = await server.text_for(body.model)
    ignored = server.fields.check(body)
    if body.instructions:
        ignored += server.fields.report(["instructions"])
    headers = {HEADER: header_value(ignored)} if ignored else {}
    speech = speech_of(server)
    voice = voice_of(body, speech, state.names)
    async with AsyncExitStack() as owned:
        owned.enter_context(server.admission.admit(1))
        spoken = Spoken(
            server=server,
            request_id=str(request.state.request_id),
            pieces=await tokens_of(text, body.input, body.speed),
            params=SpeechParams(voice=voice, rate=body.speed, seed=body.seed),
            writer=await asyncio.to_thread(sound_writer, body.response_format, speech.rate_hz),
            adapter=server.engine.spec.adapter_of(model),
        )
        if body.stream_format == "audio" and len(spoken.pieces) == 1:
            return await _whole(spoken, body, headers)
        return await _stream(spoken, body, headers, owned)


def speech_of(server: App) -> SpeechSpec:
    """Return the model's rate and voices. The routes are only served for models that speak."""
    pooling = server.engine.spec.run.pooling
    assert pooling is not None and pooling.speech is not None
    return pooling.speech


def voice_of(body: SpeechRequest, speech: SpeechSpec, names: Mapping[str, str]) -> int:
    """Return the number of the requested voice, the first if none is. Raises: RequestError"""
    if body.voice is None:
        return 0
    name = body.voice if isinstance(body.voice, str) else body.voice.id
    own = names.get(name, name)
    if own in speech.voices:
        return speech.voices.index(own)
    known = [*names, *speech.voices]
    shown = ", ".join(known[:SHOWN_VOICES]) + ", ..." * (len(known) > SHOWN_VOICES)
    raise RequestError(
        f'the model has no voice "{name}".',
        where="voice",
        fix=f"use one of {shown}; GET /v1/audio/voices lists them.",
        code="voice_not_found",
    )


async def tokens_of(text: ModelText, given: str, speed: float) -> tuple[tuple[int, ...], ...]:
    """Return the tokens of the sentences that have a sound; they are shorter if they are spoken
    slowly. Raises: RequestError if none has"""
    silent = tuple(await text.tokenize("", add_special_tokens=True))
    max_chars = int(MAX_CHARS * min(1.0, speed))
    found = [
        tuple(await text.tokenize(piece, add_special_tokens=True))
        for piece in sentences(given, max_chars)
    ]
    pieces = tuple(ids for ids in found if ids != silent)
    if not pieces:
        raise RequestError(
            "has no character that this model can speak.",
            where="input",
            fix="send a text in the model's language.",
        )
    return pieces


async def _whole(spoken: Spoken, body: SpeechRequest, headers: dict[str, str]) -> Response:
    """Return the file of a short text, whose length is known."""
    async with aclosing(spoken.chunks()) as chunks:
        data = b"".join([chunk async for chunk in chunks])
    if body.response_format == "wav":
        rate_hz = speech_of(spoken.server).rate_hz
        size = len(wav_header(rate_hz, None))
        data = wav_header(rate_hz, len(data) - size) + data[size:]
    media_type = FORMATS[body.response_format].media_type
    return Response(data, media_type=media_type, headers=headers)


async def _stream(
    spoken: Spoken, body: SpeechRequest, headers: dict[str, str], owned: AsyncExitStack
) -> EventStream:
    """Return the file as it is made. Errors of the first sentence are raised before it begins."""
    chunks = spoken.chunks()
    owned.push_async_callback(chunks.aclose)
    first = await anext(chunks, b"")
    is_sse, frontend = body.stream_format == "sse", spoken.server.frontend
    media_type = FORMATS[body.response_format].media_type
    head = StreamHead(
        headers=headers,
        request_id=spoken.request_id,
        logs_stack=frontend.log_error_stack,
        keep_alive_s=frontend.sse_keep_alive_interval if is_sse else 0.0,
        framing=EVENTS if is_sse else file_framing(media_type),
    )
    rest = _continued(first, chunks)
    return EventStream(_events(spoken, rest) if is_sse else rest, owned.pop_all(), head)


async def _continued(
    first: bytes, rest: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    yield first
    async for chunk in rest:
        yield chunk


async def _events(
    spoken: Spoken, chunks: AsyncGenerator[bytes, None]
) -> AsyncGenerator[bytes, None]:
    """Yield an event for each part of the file, then the usage."""
    async for chunk in chunks:
        yield _event("speech.audio.delta", audio=base64.b64encode(chunk).decode())
    yield _event("speech.audio.done", usage=spoken.usage.model_dump())


def _event(kind: str, **fields: Any) -> bytes:
    return msgspec.json.encode({"type": kind, **fields})


def _error_event(problem: Problem) -> bytes:
    """Return an error event, which replaces the rest of the sound."""
    error = {"message": problem.info.message, "type": "server_error"}
    return data_frame(_event("error", error=error))


def file_framing(media_type: str) -> Framing:
    """Return how a file is sent. It has no place for an error, so the connection is cut then, and a
    client sees that the sound is not whole."""
    return Framing(frame=bytes, end=b"", error=lambda problem: b"", media_type=media_type)


EVENTS = Framing(end=b"", error=_error_event)


async def list_voices(server: ServerOf, state: StateOf) -> Voices:
    """Return the names of the voices."""
    return Voices(voices=[*speech_of(server).voices, *state.names])


class SpeechApi(Api):
    """Speech from text."""

    Options: ClassVar[type[Any]] = SpeechOptions
    info = Info(
        summary="OpenAI's speech from text",
        source="https://platform.openai.com/docs/api-reference/audio/createSpeech",
    )
    routes = (
        Route(
            method="POST",
            path="/v1/audio/speech",
            endpoint=create_speech,
            body=SpeechRequest,
            takes_any_length=True,
        ),
        Route(method="GET", path="/v1/audio/voices", endpoint=list_voices),
    )
    task = SPEAK

    def state(self, frontend: Any) -> Any:
        """Return the operator's names of voices."""
        return _state({name: str(own) for name, own in self.options.voices.items()})


@asynccontextmanager
async def _state(names: Mapping[str, str]) -> AsyncIterator[SpeechState]:
    yield SpeechState(names)
