"""Transcripts as JSON, plain text or subtitles. Source: OpenAI's API reference, W3C WebVTT; SubRip
follows common players."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Protocol

import msgspec

from dovetail_plugins.apis.audio.form import SEGMENT, SRT, TEXT, VERBOSE, VTT, AudioRequest
from dovetail_plugins.apis.audio.languages import LANGUAGES
from dovetail_plugins.apis.audio.windows import FRAMES_PER_S, Segment
from dovetail_plugins.apis.audio.words import TimedWord

JSON_TYPE, TEXT_TYPE = "application/json", "text/plain; charset=utf-8"


class Recording(Protocol):
    """A recording that is transcribed. Units: duration_s"""

    duration_s: float
    request: AudioRequest
    language: str | None


def whole_text(segments: Sequence[Segment]) -> str:
    """Return the text of all segments."""
    return "".join(segment.text for segment in segments).strip()


def answer(recording: Recording, segments: Sequence[Segment]) -> tuple[bytes, str]:
    """Return the body of an answer in the requested format, and its content type."""
    text = whole_text(segments)
    wanted = recording.request.response_format
    if wanted == TEXT:
        return f"{text}\n".encode(), TEXT_TYPE
    if wanted == SRT:
        return subtitles(segments, comma=",", numbered=True).encode(), TEXT_TYPE
    if wanted == VTT:
        body = subtitles(segments, comma=".", numbered=False)
        return f"WEBVTT\n\n{body}".encode(), TEXT_TYPE
    found: dict[str, Any] = {"text": text, "usage": usage(recording)}
    if wanted == VERBOSE:
        found = {
            **_recording_facts(recording),
            **found,
        }
        if SEGMENT in recording.request.granularities:
            found["segments"] = [*map(_segment_json, range(len(segments)), segments)]
        if recording.request.needs_words:
            found["words"] = [_word_json(word) for one in segments for word in one.words]
    return msgspec.json.encode(found), JSON_TYPE


def usage(recording: Recording) -> dict[str, Any]:
    """Return the usage: seconds of audio."""
    return {"type": "duration", "seconds": math.ceil(recording.duration_s)}


def subtitles(segments: Sequence[Segment], *, comma: str, numbered: bool) -> str:
    """Return segments as subtitles, with `comma` before the milliseconds."""
    blocks = []
    for number, segment in enumerate(segments, 1):
        times = f"{_clock(segment.start, comma)} --> {_clock(segment.end, comma)}"
        text = segment.text.strip().replace("-->", "->")
        head = f"{number}\n" if numbered else ""
        blocks.append(f"{head}{times}\n{text}\n\n")
    return "".join(blocks)


def _clock(seconds: float, comma: str) -> str:
    total = round(seconds * 1000)
    minutes, rest = divmod(total, 60_000)
    return f"{minutes // 60:02}:{minutes % 60:02}:{rest // 1000:02}{comma}{rest % 1000:03}"


def _recording_facts(recording: Recording) -> dict[str, Any]:
    language = recording.language or "en"
    return {
        "task": "translate" if recording.request.is_translation else "transcribe",
        "language": LANGUAGES.get(language, language),
        "duration": round(recording.duration_s, 3),
    }


def _word_json(word: TimedWord) -> dict[str, Any]:
    return {"word": word.text.strip(), "start": word.start, "end": word.end}


def _segment_json(number: int, segment: Segment) -> dict[str, Any]:
    return {
        "id": number,
        "seek": round(segment.seek_s * FRAMES_PER_S),
        "start": segment.start,
        "end": segment.end,
        "text": segment.text,
        "tokens": segment.token_ids,
        "temperature": segment.temperature,
        "avg_logprob": segment.avg_logprob,
        "compression_ratio": segment.compression_ratio,
        "no_speech_prob": segment.no_speech_prob,
    }
