"""Session: one client's sound, cut into turns, and the texts of the turns in their order.

One task reads the client's events, another writes the texts, so that sound comes in while earlier
sound is transcribed. What is not yet transcribed counts as buffered, and buffered sound is limited.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Iterable, Mapping
from contextlib import aclosing
from dataclasses import dataclass, field
from typing import Any

import msgspec
from starlette.websockets import WebSocket, WebSocketDisconnect

from dovetail.errors import DovetailError, RequestError
from dovetail.interfaces.api import GENERATE, TRANSCRIBE
from dovetail.processes.uninterrupted import ended
from dovetail.server.endpoint import App, owner_of, problem_of
from dovetail_plugins.apis.audio.answers import usage, whole_text
from dovetail_plugins.apis.audio.form import FALLBACK, AudioFile, AudioRequest, language_code
from dovetail_plugins.apis.audio.routes import AudioState, check_language, listener_of
from dovetail_plugins.apis.audio.windows import Segment
from dovetail_plugins.apis.realtime.answers import Answer
from dovetail_plugins.apis.realtime.beta import as_beta, nested
from dovetail_plugins.apis.realtime.items import Item, Part
from dovetail_plugins.apis.realtime.protocol import (
    PLAIN_HZ,
    AnySettings,
    Append,
    Audio,
    BadEvent,
    Cancel,
    Clear,
    Commit,
    Create,
    Delete,
    Event,
    Input,
    Pcm,
    Respond,
    Settings,
    TalkSettings,
    Transcription,
    TranscriptionUpdate,
    Update,
    event_of,
    updated,
)
from dovetail_plugins.apis.realtime.sound import SAMPLE_BYTES, samples_of, wav_of
from dovetail_plugins.apis.realtime.talk import Talk, check_hears
from dovetail_plugins.apis.realtime.turns import Started, TurnDetector
from dovetail_plugins.apis.realtime.words import (
    Fields,
    OpenAIWords,
    PlainWords,
    Words,
    new_event,
    new_id,
)

logger = logging.getLogger("dovetail.server")
LARGE_BYTES = 1 << 18
"""Events above this are read in a thread: others stream meanwhile."""
POLICY, AWAY = 1008, 1001
"""Codes with which a session is closed. Source: RFC 6455, section 7.4.1"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    """The limits of a session."""

    session_s: float
    idle_s: float
    buffer_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """Sound to be transcribed as an item: samples of 16 bits, and how."""

    item_id: str
    samples: bytes
    rate_hz: int
    wanted: Transcription


class Closed(Exception):
    """The server ends the session."""

    def __init__(self, code: int, cause: RequestError) -> None:
        super().__init__(str(cause))
        self.code = code
        self.cause = cause


@dataclass(slots=True, kw_only=True)
class Session:
    """One client's session. `model` is the name that it connected to. Units: `_begin` in samples
    since the session's start"""

    socket: WebSocket
    server: App
    audio: AudioState
    limits: Limits
    model: str
    request_id: str
    words: Words
    settings: AnySettings
    is_beta: bool = False
    talk: Talk = field(init=False)
    id: str = field(default_factory=lambda: new_id("sess"))
    num_turns: int = 0
    _began_s: float = field(default_factory=time.time)
    _sound: bytearray = field(default_factory=bytearray)
    _begin: int = 0
    _detector: TurnDetector | None = None
    _item_id: str | None = None
    _last_id: str | None = None
    _waiting: asyncio.Queue[Turn | Answer] = field(default_factory=asyncio.Queue)
    _num_waiting_bytes: int = 0

    def __post_init__(self) -> None:
        self.talk = Talk(self.server, self.limits.buffer_bytes, self._waiting.put_nowait)

    async def run(self) -> None:
        """Serve the client until it leaves. Raises: Closed, WebSocketDisconnect"""
        assert isinstance(self.words, OpenAIWords), "the client has not said who it is"
        self._restart_detector()
        await self.send(self.words.created(self.id, self._expires_s, self.settings))
        tasks = {asyncio.create_task(self._read()), asyncio.create_task(self._write())}
        try:
            done, _ = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            for task in done:
                task.result()
        finally:
            await ended(*tasks)

    async def send(self, events: Iterable[Fields]) -> None:
        """Send events. Raises: WebSocketDisconnect"""
        for event in events:
            for one in as_beta(event) if self.is_beta else (event,):
                await self.socket.send_text(msgspec.json.encode(one).decode())

    @property
    def _expires_s(self) -> int:
        return int(self._began_s + self.limits.session_s)

    @property
    def _input(self) -> Input:
        return self.settings.audio.input

    @property
    def _rate_hz(self) -> int:
        return self._input.format.rate

    def _ms(self, at: int) -> int:
        return at * 1000 // self._rate_hz

    # What comes in

    async def _read(self) -> None:
        """Follow the client's events. Raises: Closed"""
        while (text := await self._received()) is not None:
            try:
                if len(text) > LARGE_BYTES:
                    event = await asyncio.to_thread(event_of, text)
                else:
                    event = event_of(text)
            except BadEvent as error:
                await self.send(self.words.error(problem_of(error), error.event_id))
                continue
            try:
                await self._follow(event)
            except DovetailError as error:
                await self.send(self.words.error(problem_of(error), event.event_id))

    async def _received(self) -> str | None:
        """Return the next event's text, None at the end. Raises: Closed"""
        left_s = self._began_s + self.limits.session_s - time.time()
        try:
            async with asyncio.timeout(max(0.0, min(left_s, self.limits.idle_s))):
                message = await self.socket.receive()
        except TimeoutError:
            raise self._over(left_s) from None
        if message["type"] == "websocket.disconnect":
            return None
        return message.get("text") or ""  # a binary message is no JSON, as an empty one

    def _over(self, left_s: float) -> Closed:
        if left_s <= self.limits.idle_s:
            what, code = f"may last {self.limits.session_s:g} s", "session_expired"
        else:
            what, code = f"may be silent for {self.limits.idle_s:g} s", "session_idle"
        cause = RequestError(f"a session {what}.", fix="open another one.", code=code)
        return Closed(AWAY, cause)

    async def _follow(self, event: Event) -> None:
        """Follow an event. Raises: RequestError, Closed. Mutates: self"""
        match event:
            case Append():
                await self._append(event.audio)
            case Update(session=None, model=str(model)):
                await self._become_plain(model)
            case Update():
                await self._update(event)
            case Commit():
                await self._commit_all(event)
            case Clear():
                self._drop(len(self._sound))
                self._restart_detector()
                await self.send(self.words.cleared())
            case Create():
                self._answering(event)
                item = self.talk.read_item(event.item, "item", self._input.format)
                before = self.talk.items.add(item, event.previous_item_id)
                await self.send(self.words.added(item, before))
            case Delete():
                self.talk.items.delete(event.item_id)
                await self.send([new_event("conversation.item.deleted", item_id=event.item_id)])
            case Respond():
                self._check_owner()
                self.talk.ask(event, self._answering(event), self._input.format)
            case Cancel():
                self.talk.cancel(event.response_id)

    async def _update(self, event: Update) -> None:
        if event.session is None:
            raise RequestError("is missing.", where="session", code="missing")
        changes: Mapping[str, Any] = event.session
        if isinstance(event, TranscriptionUpdate):
            changes = {**changes, "type": "transcription"}
        settings = updated(self.settings, nested(changes) if self.is_beta else changes)
        await self._check(settings)
        old = self._input
        if settings.audio.input.format != old.format:
            self._leave_format(settings.audio.input.format.rate)
        self.settings = settings
        if (old.format, old.turn_detection) != (self._input.format, self._input.turn_detection):
            self._restart_detector()
        found = self.words.updated(self.id, self._expires_s, settings)
        if isinstance(event, TranscriptionUpdate):
            found = [{**one, "type": "transcription_session.updated"} for one in found]
        await self.send(found)

    async def _check(self, settings: AnySettings) -> None:
        """Raise RequestError for settings that the model cannot follow."""
        wanted, is_talk = settings.audio.input.transcription, isinstance(settings, TalkSettings)
        needed = GENERATE if is_talk else TRANSCRIBE
        if needed not in self.server.tasks:
            able = '" or "'.join(sorted(self.server.tasks))
            what = f'it needs a model that can "{needed}", and the served one can "{able}".'
            raise RequestError(what, where="session.type", code="task_not_supported")
        if settings.type != self.settings.type and self.num_turns + self.talk.items.num_added:
            raise RequestError("cannot change within a conversation.", where="session.type")
        if wanted is None and not is_talk:
            raise RequestError(
                "sessions of this type do nothing but transcribe.",
                where="session.audio.input.transcription",
                fix="send settings, or leave it out.",
            )
        if isinstance(settings, TalkSettings) and settings.model is not None:
            await self.server.model_name(settings.model)
        if wanted is None:
            return
        check_hears(self.server, "session.audio.input.transcription")
        if wanted.model is not None:
            await self.server.model_name(wanted.model)
        await asyncio.to_thread(check_language, self.server, language_code(wanted.language))

    def _answering(self, event: Create | Respond) -> TalkSettings:
        """Return the settings of a session that answers. Raises: RequestError"""
        if not isinstance(self.settings, TalkSettings):
            what = f"a transcription session does not take {event.__struct_config__.tag}."
            fix = 'update the session with the type "realtime".'
            raise RequestError(what, where="type", fix=fix, code="not_supported")
        return self.settings

    def _leave_format(self, rate_hz: int) -> None:
        """Begin another format, of this rate. Raises: RequestError if a turn has begun. Mutates:
        self"""
        is_between = self._detector is not None and not self._detector.is_speaking
        if self._sound and not is_between:
            raise RequestError(
                "cannot change while sound is buffered.",
                where="session.audio.input.format",
                fix="commit or clear the sound first.",
            )
        self._drop(len(self._sound))
        self._begin = self._begin * rate_hz // self._rate_hz

    async def _become_plain(self, model: str) -> None:
        """Follow a client of vLLM's, whose sound has another rate and is committed by itself.
        Mutates: self"""
        self.model = await self.server.model_name(model)
        self.words = PlainWords()
        sound = Input(format=Pcm(rate=PLAIN_HZ), turn_detection=None)
        self.settings = Settings(audio=Audio(input=sound))
        self._drop(len(self._sound))
        self._restart_detector()

    async def _append(self, data: bytes) -> None:
        check_hears(self.server, "audio")
        samples = samples_of(data, self._input.format)
        num_bytes = len(samples) * SAMPLE_BYTES
        if self._num_waiting_bytes + len(self._sound) + num_bytes > self.limits.buffer_bytes:
            raise RequestError(
                f"at most {self.limits.buffer_bytes} bytes of sound may wait.",
                where="audio",
                fix="commit or clear it, or send it later.",
                code="input_audio_buffer_full",
            )
        self._sound += samples.astype("<i2", copy=False).tobytes()
        if self._detector is None:
            return
        if num_bytes > LARGE_BYTES:
            signals = await asyncio.to_thread(self._detector.push, samples)
        else:
            signals = self._detector.push(samples)
        vad = self._input.turn_detection
        for signal in signals:
            if isinstance(signal, Started):
                self._drop((signal.at - self._begin) * SAMPLE_BYTES)
                self._item_id = new_id("item")
                await self.send(self.words.started(self._item_id, self._ms(self._begin)))
                if vad is not None and vad.interrupt_response is not False:
                    self.talk.stop("turn_detected")
            else:
                await self._end_turn(signal.at)
        if not self._detector.is_speaking:
            self._drop(len(self._sound) - self._detector.num_padding * SAMPLE_BYTES)
        elif len(self._sound) > self.limits.buffer_bytes // 2:
            await self._end_turn(self._begin + len(self._sound) // SAMPLE_BYTES)
            self._restart_detector()

    async def _end_turn(self, at: int) -> None:
        """Make the sound of a turn, which ends at a sample, an item. Mutates: self"""
        assert self._item_id is not None, "a turn that ends has begun"
        await self.send(self.words.stopped(self._item_id, self._ms(at)))
        await self._commit((at - self._begin) * SAMPLE_BYTES)
        vad = self._input.turn_detection
        is_wanted = vad is not None and vad.create_response is not False
        if isinstance(self.settings, TalkSettings) and is_wanted:
            self.talk.begin(Respond(), self.settings)

    def _drop(self, num_bytes: int) -> bytes:
        """Return the first bytes, which leave the buffer. Mutates: self"""
        dropped = bytes(self._sound[: max(0, num_bytes)])
        del self._sound[: len(dropped)]
        self._begin += len(dropped) // SAMPLE_BYTES
        return dropped

    def _restart_detector(self) -> None:
        """Begin to look for a turn after all sound so far. Mutates: self"""
        self._item_id, self._detector = None, None
        if self._input.turn_detection is not None:
            end = self._begin + len(self._sound) // SAMPLE_BYTES
            self._detector = TurnDetector(self._input.turn_detection, self._rate_hz, end)

    async def _commit_all(self, event: Commit) -> None:
        """Make all sound an item, which the client asks for. Raises: RequestError. Mutates: self"""
        if not self._sound and isinstance(self.words, PlainWords):
            if event.final and not self._num_waiting_bytes:
                await self.send(self.words.completed("", "", 0.0))
            return
        if not self._sound:
            raise RequestError(
                "there is no sound to commit.",
                fix="append some first.",
                code="input_audio_buffer_commit_empty",
            )
        await self._commit(len(self._sound))
        self._restart_detector()

    async def _commit(self, num_bytes: int) -> None:
        """Make the first bytes of the buffer an item. Raises: Closed. Mutates: self"""
        self._check_owner()
        if isinstance(self.settings, TalkSettings):
            self.talk.items.check_room(num_bytes)
        turn = Turn(
            item_id=self._item_id or new_id("item"),
            samples=self._drop(num_bytes),
            rate_hz=self._rate_hz,
            wanted=self._input.transcription or Transcription(),
        )
        self._item_id, last_id = None, self._last_id
        self._last_id = turn.item_id
        self.num_turns += 1
        if isinstance(self.settings, TalkSettings):
            part = Part(type="input_audio", audio=turn.samples)
            item = Item(role="user", id=turn.item_id, content=(part,), rate_hz=turn.rate_hz)
            last_id = self.talk.items.add(item)
        await self.send(self.words.committed(turn.item_id, last_id))
        if self._input.transcription is not None:
            self._num_waiting_bytes += len(turn.samples)
            self._waiting.put_nowait(turn)

    def _check_owner(self) -> None:
        """Raise Closed if the client's key has been withdrawn since it connected."""
        if not self.socket.app.state.gate.knows(owner_of(self.socket)):
            cause = RequestError("the key is no longer valid.", code="invalid_api_key", status=401)
            raise Closed(POLICY, cause)

    # What goes out

    async def _write(self) -> None:
        """Write the texts of the turns in their order."""
        while True:
            turn = await self._waiting.get()
            if isinstance(turn, Answer):
                await self.talk.write(turn, self.socket, self.model, self.send)
                continue
            try:
                await self._transcribe(turn)
            except WebSocketDisconnect:
                return
            except DovetailError as error:
                await self.send(self.words.failed(turn.item_id, problem_of(error)))
            except Exception as error:
                logger.error("request %s failed", self.request_id, exc_info=error)
                await self.send(self.words.failed(turn.item_id, problem_of(error)))
            finally:
                self._num_waiting_bytes -= len(turn.samples)

    async def _transcribe(self, turn: Turn) -> None:
        """Send a turn's text, piece by piece and whole. Raises: RequestError, RequestFault"""
        body = _request_of(turn)
        model = self.model if body.model is None else await self.server.model_name(body.model)
        name = f"{self.request_id}-{turn.item_id}"
        said: list[Segment] = []
        with self.server.admission.admit(1):
            listener = await listener_of(self.server, self.audio, body, model, name)
            async with aclosing(listener.segments()) as segments:
                async for segment in segments:
                    text = segment.text if said else segment.text.lstrip()
                    said.append(segment)
                    await self.send(self.words.delta(turn.item_id, text))
        seconds = usage(listener)["seconds"]
        await self.send(self.words.completed(turn.item_id, whole_text(said), seconds))


def _request_of(turn: Turn) -> AudioRequest:
    """Return a turn as a request of /v1/audio/transcriptions."""
    wanted = turn.wanted
    return AudioRequest(
        file=AudioFile(data=wav_of(turn.samples, turn.rate_hz)),
        model=wanted.model,
        language=language_code(wanted.language),
        prompt=wanted.prompt or "",
        temperatures=(wanted.temperature,) if wanted.temperature else FALLBACK,
        seed=wanted.seed,
        stream=True,
    )
