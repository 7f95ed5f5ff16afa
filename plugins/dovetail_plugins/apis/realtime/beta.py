"""The beta of OpenAI's realtime API, which many clients still speak: its names for the same things.

A client asks for it with the header `OpenAI-Beta: realtime=v1`. Its settings are flat, and an item
is announced by one event. Source: OpenAI's API reference, realtime beta
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dovetail_plugins.apis.realtime.words import Fields

HEADER = ("openai-beta", "realtime=v1")
FORMATS = {"pcm16": "audio/pcm", "g711_ulaw": "audio/pcmu", "g711_alaw": "audio/pcma"}
SOUND = {
    "input_audio_format": "format",
    "input_audio_transcription": "transcription",
    "turn_detection": "turn_detection",
}
"""A setting of the sound -> its name now."""
SETTINGS = {"max_response_output_tokens": "max_output_tokens", "modalities": "output_modalities"}
LEFT_OUT = frozenset(
    {"client_secret", "input_audio_noise_reduction", "output_audio_format", "speed", "voice"}
)
EVENTS = {
    "conversation.item.added": "conversation.item.created",
    "conversation.item.done": "",
    "response.output_text.delta": "response.text.delta",
    "response.output_text.done": "response.text.done",
}
"""An event -> its name in the beta; "" if it has none."""


def nested(session: Mapping[str, Any]) -> dict[str, Any]:
    """Return settings by their names now. What the beta has alone is left out."""
    found: dict[str, Any] = {}
    sound: dict[str, Any] = {}
    for name, value in session.items():
        if name == "input_audio_format":
            sound["format"] = {"type": FORMATS.get(value, value)}
        elif name in SOUND:
            sound[SOUND[name]] = value
        elif name == "modalities":
            found[SETTINGS[name]] = ["text"]  # the settings that are sent back show it
        elif name not in LEFT_OUT:
            found[SETTINGS.get(name, name)] = value
    return {**found, "audio": {"input": sound}} if sound else found


def as_beta(event: Fields) -> list[Fields]:
    """Return an event by its name in the beta: none or one."""
    name = EVENTS.get(event["type"], event["type"])
    if not name:
        return []
    if "session" in event:
        return [{**event, "session": _flat(event["session"])}]
    return [{**event, "type": name}]


def _flat(session: Fields) -> Fields:
    """Return settings with the beta's names as well."""
    sound = session["audio"]["input"]
    formats = {now: before for before, now in FORMATS.items()}
    values = {name: sound[now] for name, now in SOUND.items()}
    values["input_audio_format"] = formats[sound["format"]["type"]]
    others = {name: session[now] for name, now in SETTINGS.items() if now in session}
    return {**session, **values, "modalities": ["text"], **others}
