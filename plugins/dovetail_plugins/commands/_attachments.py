"""Attachments of `dovetail chat` messages: files and URLs become parts of the content."""

from __future__ import annotations

import base64
import mimetypes
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from dovetail.errors import ConfigError

MAX_BYTES = 256 << 20
"""The largest file that is read; servers have their own limits."""


def attachment_of(place: str, where: str) -> dict[str, Any]:
    """Return the part for a file or an image URL. Raises: ConfigError

    The part of a text file has its name and its text.
    """
    if place.startswith(("http://", "https://", "data:")):
        return _by_address("image", place)
    path = Path(place.strip("'\"")).expanduser()
    data = _read(path, where)
    media_type = mimetypes.guess_type(path.name)[0] or ""
    sort = media_type.partition("/")[0]
    encoded = base64.b64encode(data).decode()
    if sort == "audio":
        form = {"mpeg": "mp3", "x-wav": "wav"}.get(media_type[6:], media_type[6:])
        return {"type": "input_audio", "input_audio": {"data": encoded, "format": form}}
    if sort in ("image", "video"):
        return _by_address(sort, f"data:{media_type};base64,{encoded}")
    try:
        return {"type": "text", "text": f"{path.name}:\n\n{data.decode()}"}
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{path} is neither an image, a sound, a video nor text in UTF-8.",
            where=where,
            fix="convert it to one of these.",
        ) from error


def content_of(parts: Sequence[dict[str, Any]], message: str) -> str | list[dict[str, Any]]:
    """Return a message's content. Text alone stays text, which every model takes."""
    if all(part["type"] == "text" for part in parts):
        return "\n\n".join([*(part["text"] for part in parts), message])
    return [*parts, {"type": "text", "text": message}]


def _by_address(sort: str, address: str) -> dict[str, Any]:
    return {"type": f"{sort}_url", f"{sort}_url": {"url": address}}


def _read(path: Path, where: str) -> bytes:
    try:
        size = path.stat().st_size
        if size > MAX_BYTES:
            raise ConfigError(
                f"{path} has {size >> 20} MiB, and at most {MAX_BYTES >> 20} are read.",
                where=where,
                fix="send less of it.",
            )
        return path.read_bytes()
    except OSError as error:
        raise ConfigError(
            f"cannot read {path}: {error.strerror}.", where=where, fix="check the path."
        ) from error
