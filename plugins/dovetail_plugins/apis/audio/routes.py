"""POST /v1/audio/transcriptions and /v1/audio/translations: speech to text."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

import msgspec
from fastapi import Depends, Request
from starlette.responses import Response

from dovetail.interfaces.api import TRANSCRIBE, Api, Route
from dovetail.interfaces.data.media_settings import AUDIO, MIB, MediaSettings
from dovetail.interfaces.data.spec import ModelSpec
from dovetail.interfaces.plugin import Info
from dovetail.multimodal.content import MediaItem, Sound
from dovetail.multimodal.loader import MediaLoader
from dovetail.server.endpoint import (
    App,
    EventStream,
    Framing,
    Problem,
    ServerOf,
    StreamHead,
    cancel_on_disconnect,
    data_frame,
    state_of,
)
from dovetail_plugins.apis.audio.answers import answer, usage, whole_text
from dovetail_plugins.apis.audio.chat_speech import ChatListener, chat_listener
from dovetail_plugins.apis.audio.form import URL, AudioFile, AudioRequest, audio_request
from dovetail_plugins.apis.audio.spectrogram import RATE_HZ, Spectrum, log_mel, spectrum_of
from dovetail_plugins.apis.audio.speech_tokens import SpeechTokens, speech_tokens
from dovetail_plugins.apis.audio.windows import Listener, Segment


@dataclass(slots=True)
class AudioState:
    """The media loader, created for the first request, and spectrogram settings per checkpoint."""

    loader: MediaLoader | None = None
    spectrums: dict[str, Spectrum] = field(default_factory=dict)

    async def sound(self, file: AudioFile, settings: MediaSettings) -> Sound:
        """Return decoded audio. Raises: RequestError, ConfigError. Mutates: self"""
        if self.loader is None:
            self.loader = MediaLoader(settings)
        item = MediaItem(kind=AUDIO, where="file" if file.url is None else URL, url=file.url)
        if file.url is None:
            found = await self.loader.sent(item, file.data)
        else:
            (loaded,) = await self.loader.load([item])
            found = loaded.content
        assert isinstance(found, Sound)
        return found

    def spectrum(self, model: ModelSpec) -> Spectrum:
        """Return the spectrogram settings of a model. Mutates: self"""
        if model.path not in self.spectrums:
            self.spectrums[model.path] = spectrum_of(model)
        return self.spectrums[model.path]


AudioOf = Annotated[AudioState, Depends(state_of(AudioState))]


async def create_transcription(request: Request, server: ServerOf, state: AudioOf) -> Any:
    """Transcribe speech in its own language: a form with the field file."""
    return await _answered(request, server, state, is_translation=False)


async def create_translation(request: Request, server: ServerOf, state: AudioOf) -> Any:
    """Translate speech to English text: a form with the field file."""
    return await _answered(request, server, state, is_translation=True)


async def _answered(
    request: Request, server: App, state: AudioState, *, is_translation: bool
) -> Any:
    """Return the answer; the work is cancelled if the client leaves first."""
    raw = await request.body()  # read first: watching the connection would consume the body
    work = _worked_out(request, raw, server, state, is_translation=is_translation)
    return await cancel_on_disconnect(request, work)


async def _worked_out(
    request: Request, raw: bytes, server: App, state: AudioState, *, is_translation: bool
) -> Response:
    kind = request.headers.get("content-type", "")
    form = await asyncio.to_thread(audio_request, kind, raw, is_translation=is_translation)
    model = await server.model_name(form.model)
    async with AsyncExitStack() as owned:
        owned.enter_context(server.admission.admit(1))
        listener = await listener_of(server, state, form, model, str(request.state.request_id))
        segments = listener.segments()
        owned.push_async_callback(segments.aclose)
        if form.stream:
            first = await anext(segments, None)  # errors are raised before the stream begins
            head = StreamHead(
                headers={},
                request_id=listener.request_id,
                logs_stack=server.frontend.log_error_stack,
                keep_alive_s=server.frontend.sse_keep_alive_interval,
                framing=FRAMING,
            )
            return EventStream(_events(listener, first, segments), owned.pop_all(), head)
        body, content_type = answer(listener, [segment async for segment in segments])
        return Response(body, media_type=content_type)


async def listener_of(
    server: App, state: AudioState, body: AudioRequest, model: str, request_id: str
) -> Listener | ChatListener:
    """Return the decoded audio, ready for transcription. Raises: RequestError"""
    spec = server.engine.spec
    if spec.run.model.encoder is None:
        return await chat_listener(server, body, model, request_id)
    task = "translate" if body.is_translation else "transcribe"
    tokens = _checked_tokens(server, body.language, task)
    assert spec.sounds is not None, "a model of speech says how sounds are read"
    sound = await state.sound(body.file, spec.sounds)
    spectrum = await asyncio.to_thread(state.spectrum, spec.run.model)
    return Listener(
        engine=server.engine,
        tokens=tokens,
        spectrogram=await asyncio.to_thread(log_mel, sound.samples, spectrum),
        duration_s=len(sound.samples) / RATE_HZ,
        request=body,
        request_id=request_id,
        adapter=spec.adapter_of(model),
    )


def check_language(server: App, language: str | None) -> None:
    """Raise RequestError if a model of speech does not know a language; a chat model is asked."""
    if server.engine.spec.run.model.encoder is not None:
        _checked_tokens(server, language, "transcribe")


def _checked_tokens(server: App, language: str | None, task: str) -> SpeechTokens:
    """Return a model's tokens of speech. Raises: RequestError if it cannot do what is asked"""
    tokens = speech_tokens(server.engine.spec, server.engine.tokenizer)
    tokens.prompt(language or next(iter(tokens.languages), None), task, has_times=False)
    return tokens


async def _events(
    listener: Listener | ChatListener, first: Segment | None, segments: AsyncIterator[Segment]
) -> AsyncGenerator[bytes, None]:
    """Yield a delta per segment, then the whole text."""
    spoken: list[Segment] = []
    segment = first
    while segment is not None:
        text = segment.text if spoken else segment.text.lstrip()
        spoken.append(segment)
        yield _event("transcript.text.delta", delta=text)
        segment = await anext(segments, None)
    yield _event("transcript.text.done", text=whole_text(spoken), usage=usage(listener))


def _event(kind: str, **fields: Any) -> bytes:
    return msgspec.json.encode({"type": kind, **fields})


def _error_frame(problem: Problem) -> bytes:
    """Return an error event, which replaces the rest of the answer."""
    error = {"message": problem.info.message, "type": "server_error"}
    return data_frame(_event("error", error=error))


FRAMING = Framing(end=b"", error=_error_frame)


class AudioApi(Api):
    """Transcription and translation."""

    info = Info(
        summary="OpenAI's transcription and translation of sounds",
        source="https://platform.openai.com/docs/api-reference/audio",
    )
    routes = (
        Route(method="POST", path="/v1/audio/transcriptions", endpoint=create_transcription),
        Route(method="POST", path="/v1/audio/translations", endpoint=create_translation),
    )
    task = TRANSCRIBE
    max_body_bytes = 36 * MIB  # 25 MiB of audio, also in base64, and the other fields

    def state(self, frontend: Any) -> Any:
        """Return the audio decoder; its processes end with the server."""
        return _state()


@asynccontextmanager
async def _state() -> AsyncIterator[AudioState]:
    state = AudioState()
    try:
        yield state
    finally:
        if state.loader is not None:
            await state.loader.close()
