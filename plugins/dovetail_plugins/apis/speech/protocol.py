"""Bodies of /v1/audio/speech. Source: the OpenAI API reference, audio."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import Field

from dovetail.server.endpoint import MAX_NAME_CHARS, Body, Reply

MAX_CHARS = 4096
"""The longest input, as in OpenAI's API."""
Name = Annotated[str, Field(max_length=MAX_NAME_CHARS)]
Format = Literal["mp3", "opus", "aac", "flac", "wav", "pcm"]


class VoiceId(Body):
    """A voice, as an object."""

    id: Name


class SpeechRequest(Body):
    """A text to speak. `speed` multiplies the model's own rate; `seed` is that of the noise."""

    model: str | None = None
    input: Annotated[str, Field(min_length=1, max_length=MAX_CHARS)]
    voice: Name | VoiceId | None = None
    response_format: Format = "mp3"
    speed: Annotated[float, Field(ge=0.25, le=4)] = 1.0
    stream_format: Literal["audio", "sse"] = "audio"
    instructions: Annotated[str, Field(max_length=MAX_CHARS)] = ""
    seed: Annotated[int, Field(ge=0, lt=1 << 63)] = 0


class Voices(Reply):
    """The names of a model's voices, the default one first."""

    voices: list[str]


class SpeechUsage(Reply):
    """The tokens of the text; those of the sound are not counted, since there are none."""

    input_tokens: int
    output_tokens: int = 0
    total_tokens: int
