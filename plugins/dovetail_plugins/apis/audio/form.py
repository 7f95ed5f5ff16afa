"""AudioRequest: the form with which OpenAI's clients send audio. Source: OpenAI's API reference"""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from dovetail.errors import RequestError
from dovetail.json_values import InvalidJson, json_struct
from dovetail_plugins.apis.audio.languages import LANGUAGES
from dovetail_plugins.apis.batches.multipart import form_parts

JSON, TEXT, SRT, VTT, VERBOSE = "json", "text", "srt", "vtt", "verbose_json"
WORD, SEGMENT = "word", "segment"
FORMATS = (JSON, TEXT, SRT, VTT, VERBOSE)
FALLBACK = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Temperatures tried in order until a transcript is credible. Source: Radford et al., 2022"""
_WORDS = {"true": True, "1": True, "false": False, "0": False, "": False}


class AudioFile(msgspec.Struct, frozen=True, kw_only=True):
    """An audio file: its bytes, or its URL (http, https, data or file)."""

    data: bytes = b""
    url: str | None = None


class AudioRequest(msgspec.Struct, frozen=True, kw_only=True):
    """One request. `temperatures` are tried in order. `language` None: it is detected."""

    file: AudioFile
    model: str | None = None
    language: str | None = None
    prompt: str = ""
    response_format: str = JSON
    temperatures: tuple[float, ...] = FALLBACK
    seed: int | None = None
    stream: bool = False
    is_translation: bool = False
    granularities: frozenset[str] = frozenset({SEGMENT})

    @property
    def needs_words(self) -> bool:
        """Return whether the answer includes word times."""
        return WORD in self.granularities

    @property
    def tells_silence(self) -> bool:
        """Return whether the answer includes the probability of silence."""
        return self.response_format == VERBOSE and SEGMENT in self.granularities

    @property
    def needs_times(self) -> bool:
        """Return whether the answer includes times."""
        return self.response_format in (SRT, VTT, VERBOSE)


def audio_request(content_type: str, body: bytes, *, is_translation: bool) -> AudioRequest:
    """Return the request in a form, or in JSON with the field file_url. Raises: RequestError naming
    the field"""
    if content_type.partition(";")[0].strip().lower() == "application/json":
        fields = _json_fields(body)
        url = fields.pop(URL, [""])[-1]
        if not url:
            raise RequestError("is missing.", where=URL, fix=MISSING)
        return _request(fields, AudioFile(url=url), is_translation=is_translation)
    fields, file = {}, None
    for name, part in form_parts(content_type, body, MISSING):
        if name == "file":
            file = AudioFile(data=part.data)
        else:
            fields.setdefault(name.removesuffix("[]"), []).append(
                part.data.decode("utf-8", "replace").strip()
            )
    if file is None or not file.data:
        raise RequestError(
            "is missing." if file is None else "is empty.", where="file", fix=MISSING
        )
    return _request(fields, file, is_translation=is_translation)


def _json_fields(body: bytes) -> dict[str, list[str]]:
    """Return the fields of a JSON body in the format of a form's. Raises: RequestError"""
    try:
        given = json_struct(body, dict[str, _Scalar | list[str]])
    except InvalidJson as error:
        raise RequestError(f"the body {error}", fix=MISSING) from None
    return {
        name.removesuffix("[]"): value if isinstance(value, list) else [_as_text(value)]
        for name, value in given.items()
        if value is not None
    }


_Scalar = str | bool | int | float | None


def _as_text(value: _Scalar) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


URL = "file_url"
MISSING = (
    "send a form (multipart/form-data) with the field file, which holds the sound, or JSON with "
    "file_url, which says where it is."
)
TAKEN = (
    *("model", "language", "prompt", "response_format", "temperature", "seed", "stream"),
    *("timestamp_granularities", "chunking_strategy"),
)


def _request(
    fields: dict[str, list[str]], file: AudioFile, *, is_translation: bool
) -> AudioRequest:
    foreign = sorted(set(fields) - set(TAKEN))
    if foreign:
        raise RequestError("is not supported.", where=foreign[0], fix="leave it out.")
    given = {name: values[-1] for name, values in fields.items() if values[-1]}
    response_format = given.get("response_format", JSON)
    if response_format not in FORMATS:
        raise RequestError(f"must be one of {', '.join(FORMATS)}.", where="response_format")
    stream = _truth(given.get("stream", ""), "stream")
    if stream and response_format not in (JSON, TEXT):
        raise RequestError("a stream is text alone.", where="response_format", fix="use json.")
    granularities = fields.get("timestamp_granularities", ())
    _check_granularities(granularities, response_format)
    if given.get("chunking_strategy", "auto") != "auto":
        raise RequestError('must be "auto".', where="chunking_strategy", fix="leave it out.")
    temperature = _number(given, "temperature")
    if temperature is not None and not 0 <= temperature <= 1:
        raise RequestError("must be from 0 to 1.", where="temperature")
    seed = _number(given, "seed")
    return AudioRequest(
        file=file,
        model=given.get("model"),
        language=language_code(given.get("language")),
        prompt=given.get("prompt", ""),
        response_format=response_format,
        temperatures=(temperature,) if temperature else FALLBACK,
        seed=None if seed is None else int(seed),
        stream=stream,
        is_translation=is_translation,
        granularities=frozenset(granularities or {SEGMENT}),
    )


def _check_granularities(granularities: Sequence[str], response_format: str) -> None:
    """Raises: RequestError for unknown granularities, and for times in an answer without any"""
    if set(granularities) - {WORD, SEGMENT}:
        raise RequestError("must be word or segment.", where="timestamp_granularities")
    if granularities and response_format != VERBOSE:
        raise RequestError(
            "times stand in verbose_json alone.",
            where="timestamp_granularities",
            fix="set response_format to verbose_json.",
        )


def language_code(given: str | None) -> str | None:
    """Return the code of a language, which may be given by name."""
    if given is None:
        return None
    names = {name: code for code, name in LANGUAGES.items()}
    word = given.lower()
    return names.get(word, word)


def _truth(text: str, where: str) -> bool:
    if text.lower() not in _WORDS:
        raise RequestError("must be true or false.", where=where)
    return _WORDS[text.lower()]


def _number(given: dict[str, str], name: str) -> float | None:
    """Return a number. Raises: RequestError"""
    if name not in given:
        return None
    try:
        return float(given[name])
    except ValueError:
        raise RequestError("must be a number.", where=name) from None
