"""What clients send in a realtime session: its settings, and their events.

Source: OpenAI's realtime API reference (transcription sessions); vLLM's realtime endpoint, whose
session.update holds the model alone, and whose commit says whether it is the last.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any, Literal, get_args

import msgspec

from dovetail.errors import RequestError
from dovetail.json_values import InvalidJson, json_struct
from dovetail_plugins.apis.realtime.items import Item

PCM_HZ, PLAIN_HZ = 24_000, 16_000
"""Samples a second: OpenAI's PCM, and that of vLLM's clients."""
WHOLE = frozenset({"format", "turn_detection"})
"""Settings that an update replaces altogether; others it changes field by field."""
HINTS = frozenset({"noise_reduction", "output", "tracing", "truncation"})
"""Settings that are left out, as the settings that are sent back show."""


class Pcm(msgspec.Struct, frozen=True, kw_only=True, tag="audio/pcm", forbid_unknown_fields=True):
    """Samples of 16 bits, little endian, one channel."""

    rate: Annotated[int, msgspec.Meta(ge=8_000, le=96_000)] = PCM_HZ


class MuLaw(msgspec.Struct, frozen=True, tag="audio/pcmu", forbid_unknown_fields=True):
    """G.711 with the mu law: bytes, 8000 a second."""

    rate: Literal[8000] = 8000


class ALaw(msgspec.Struct, frozen=True, tag="audio/pcma", forbid_unknown_fields=True):
    """G.711 with the A law: bytes, 8000 a second."""

    rate: Literal[8000] = 8000


Format = Pcm | MuLaw | ALaw


class ServerVad(
    msgspec.Struct, frozen=True, kw_only=True, tag="server_vad", forbid_unknown_fields=True
):
    """Turns are found by their loudness (`turns`). In a session that answers, a turn asks for an
    answer, and its begin ends one, unless `create_response` or `interrupt_response` is false."""

    threshold: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.5
    prefix_padding_ms: Annotated[int, msgspec.Meta(ge=0, le=10_000)] = 300
    silence_duration_ms: Annotated[int, msgspec.Meta(ge=20, le=60_000)] = 500
    create_response: bool | None = None
    interrupt_response: bool | None = None
    idle_timeout_ms: None = None


class Transcription(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How speech is written, with two fields of /v1/audio/transcriptions that OpenAI does not have
    here: `temperature` and `seed`."""

    model: str | None = None
    language: str | None = None
    prompt: str | None = None
    temperature: Annotated[float, msgspec.Meta(ge=0, le=1)] | None = None
    seed: int | None = None


class Input(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sound that comes in. No noise is taken out of it."""

    format: Format = Pcm()
    transcription: Transcription | None = Transcription()
    turn_detection: ServerVad | None = ServerVad()
    noise_reduction: None = None


class Audio(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sound of a session."""

    input: Input = Input()


class Settings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a session."""

    type: Literal["transcription"] = "transcription"
    audio: Audio = Audio()
    include: tuple[()] | None = None


class TalkInput(Input, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sound of a session that answers: it is written only if the client asks for it."""

    transcription: Transcription | None = None


class TalkAudio(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The sound of a session that answers. Answers are texts, so its output has no settings."""

    input: TalkInput = TalkInput()


Limit = Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)] | Literal["inf"]
Texts = Annotated[tuple[Literal["text"], ...], msgspec.Meta(min_length=1, max_length=1)]


class TalkSettings(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The settings of a session that answers with text. It offers no tools to the model."""

    type: Literal["realtime"] = "realtime"
    model: str | None = None
    instructions: str = ""
    output_modalities: Texts = ("text",)
    max_output_tokens: Limit = "inf"
    temperature: Annotated[float, msgspec.Meta(ge=0, le=2)] | None = None
    audio: TalkAudio = TalkAudio()
    tools: tuple[()] = ()
    tool_choice: Literal["auto", "none"] = "auto"


AnySettings = Settings | TalkSettings


class Wanted(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What an answer is wanted to be, where it differs from the session's settings."""

    conversation: Literal["auto", "none"] | None = None
    input: tuple[Item, ...] | None = None
    instructions: str | None = None
    max_output_tokens: Limit | None = None
    metadata: dict[str, str] | None = None
    output_modalities: Texts | None = None
    tools: tuple[()] | None = None
    tool_choice: Literal["auto", "none"] | None = None


class Respond(msgspec.Struct, frozen=True, kw_only=True, tag="response.create"):
    """Asks for an answer."""

    event_id: str | None = None
    response: Wanted = Wanted()


class Cancel(msgspec.Struct, frozen=True, kw_only=True, tag="response.cancel"):
    """Ends the answer that is being written, or one that waits."""

    event_id: str | None = None
    response_id: str | None = None


class Create(msgspec.Struct, frozen=True, kw_only=True, tag="conversation.item.create"):
    """Adds an item."""

    item: Item
    event_id: str | None = None
    previous_item_id: str | None = None


class Delete(msgspec.Struct, frozen=True, kw_only=True, tag="conversation.item.delete"):
    """Removes an item."""

    item_id: str
    event_id: str | None = None


class Update(msgspec.Struct, frozen=True, kw_only=True, tag="session.update"):
    """Changes settings; with `model` alone it begins a session of vLLM's."""

    event_id: str | None = None
    session: dict[str, Any] | None = None
    model: str | None = None


class TranscriptionUpdate(Update, frozen=True, kw_only=True, tag="transcription_session.update"):
    """The beta's event for changes of a transcription session."""


class Append(msgspec.Struct, frozen=True, kw_only=True, tag="input_audio_buffer.append"):
    """Adds sound, which JSON holds in base64."""

    audio: bytes
    event_id: str | None = None


class Commit(msgspec.Struct, frozen=True, kw_only=True, tag="input_audio_buffer.commit"):
    """Ends a turn. `final` (vLLM): no sound follows."""

    event_id: str | None = None
    final: bool = False


class Clear(msgspec.Struct, frozen=True, kw_only=True, tag="input_audio_buffer.clear"):
    """Drops the sound that has not been committed."""

    event_id: str | None = None


Event = Update | TranscriptionUpdate | Append | Commit | Clear | Respond | Cancel | Create | Delete
KNOWN = tuple(str(kind.__struct_config__.tag) for kind in get_args(Event))
OTHERS = frozenset(
    f"{name}.{verb}"
    for name, verbs in (
        ("conversation.item", ("retrieve", "truncate")),
        ("output_audio_buffer", ("clear",)),
    )
    for verb in verbs
)
"""Events of OpenAI's that sessions here do not take."""


class _Head(msgspec.Struct, frozen=True, kw_only=True):
    type: Any = None
    event_id: Any = None


class BadEvent(RequestError):
    """An event that cannot be followed. The session goes on."""

    def __init__(self, what: str, *, event_id: str | None = None, **more: Any) -> None:
        super().__init__(what, **more)
        self.event_id = event_id


def event_of(text: str) -> Event:
    """Return a client's event. Raises: BadEvent"""
    try:
        found: Event = json_struct(text, Event)
    except InvalidJson as error:
        raise _fault(text, error) from None
    return found


def _fault(text: str, error: InvalidJson) -> BadEvent:
    """Return what is wrong with an event."""
    try:
        head = json_struct(text, _Head)
    except InvalidJson:
        return BadEvent(f"the event {error}", fix="send a JSON object.", code="invalid_json")
    event_id = head.event_id if isinstance(head.event_id, str) else None
    name = str(head.type)[:64]
    if name in OTHERS:
        what = f'sessions here do not take the event "{name}".'
        return BadEvent(what, where="type", code="not_supported", event_id=event_id)
    if name not in KNOWN:
        fix = f"use one of {', '.join(KNOWN)}."
        what = f'there is no event "{name}".' if head.type is not None else "is missing."
        return BadEvent(what, where="type", fix=fix, code="invalid_value", event_id=event_id)
    return BadEvent(f"the event {error}", code="invalid_value", event_id=event_id)


def updated(settings: AnySettings, changes: Mapping[str, Any]) -> AnySettings:
    """Return settings with a client's changes: what it leaves out stays, unless it changes the
    type. Raises: RequestError"""
    wanted = changes.get("type", settings.type)
    kind: type[AnySettings] = TalkSettings if wanted == "realtime" else Settings
    before = settings if isinstance(settings, kind) else kind()
    try:
        found: AnySettings = msgspec.convert(_merged(msgspec.to_builtins(before), changes), kind)
        return found
    except (msgspec.ValidationError, RecursionError) as error:
        what, _, place = str(error).partition(" - at `$")
        where = f"session{place.rstrip('`')}"
        raise RequestError(f"{what}.", where=where, code="invalid_value") from None


def _merged(old: Mapping[str, Any], new: Mapping[str, Any]) -> dict[str, Any]:
    found = dict(old)
    for name, value in new.items():
        before = found.get(name)
        if name in HINTS:
            continue
        if isinstance(value, Mapping) and isinstance(before, Mapping) and name not in WHOLE:
            value = _merged(before, value)
        found[name] = value
    return found
