"""A content part of a chat message as a MediaItem.

Source: the OpenAI API reference, chat; the types that vLLM adds (video_url, audio_url, *_embeds,
and short forms that hold the URL itself).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dovetail.errors import RequestError
from dovetail.interfaces.data.media_settings import AUDIO, AUDIO_EMBEDS, IMAGE, IMAGE_EMBEDS, VIDEO
from dovetail.multimodal.content import MediaItem

KIND_OF = {
    "image_url": IMAGE,
    "input_image": IMAGE,
    "image": IMAGE,
    "video_url": VIDEO,
    "video": VIDEO,
    "audio_url": AUDIO,
    "audio": AUDIO,
    "input_audio": AUDIO,
    "image_embeds": IMAGE_EMBEDS,
    "audio_embeds": AUDIO_EMBEDS,
}
"""Type of a part -> kind of medium."""

FILES = frozenset({"file", "input_file", "document"})
DETAILS = ("auto", "low", "high", "original")
MAX_URL_CHARS = 1 << 13
"""Limit for URLs that do not contain the data."""

MAX_UUID_CHARS = 256
MAX_TENSORS = 8


def media_type(part: Mapping[str, Any]) -> str | None:
    """Return the type of a media or file part; None for any other part. A part without a type may
    be recognized by its fields."""
    kind = part.get("type")
    if kind is None:
        kind = next((name for name in KIND_OF if part.get(name) is not None), None)
    return kind if kind in KIND_OF or kind in FILES else None


def media_item(part: Mapping[str, Any], where: str) -> MediaItem:
    """Return the medium of a part that has a `media_type`. Raises: RequestError"""
    type_name = media_type(part)
    assert type_name is not None
    if type_name in FILES:
        raise RequestError(
            "files and documents are not supported in prompts.",
            where=where,
            fix="send their text, or images of their pages.",
            code="unsupported_field",
        )
    kind = KIND_OF[type_name]
    item = MediaItem(kind=kind, where=where, uuid=_uuid(part, where))
    if kind in (IMAGE_EMBEDS, AUDIO_EMBEDS):
        return replace(item, data=_tensors(part.get(type_name), f"{where}.{type_name}"))
    if type_name == "input_audio":
        return _input_audio(part, item)
    name, source = _source(part, type_name)
    at = f"{where}.{name}"
    if source is None:
        return _named(item, at)
    detail = part.get("detail")
    if isinstance(source, Mapping):
        detail, at = source.get("detail", detail), f"{at}.url"
        source = source.get("url")
    if detail is not None and detail not in DETAILS:
        raise RequestError(f"must be one of {', '.join(DETAILS)}.", where=f"{where}.detail")
    return replace(item, url=_url(source, at), detail=detail)


def _named(item: MediaItem, where: str) -> MediaItem:
    """Return an item identified only by its uuid. Raises: RequestError without one"""
    return item if item.uuid is not None else replace(item, url=_url(None, where))


def _source(part: Mapping[str, Any], type_name: str) -> tuple[str, Any]:
    """Return the field with a medium's source, and its value."""
    kind = KIND_OF[type_name]
    for name in (type_name, f"{kind}_url", kind, "url"):
        if part.get(name) is not None:
            return name, part[name]
    return (f"{kind}_url" if type_name == "input_image" else type_name), None


def _url(source: Any, where: str) -> str:
    if not isinstance(source, str) or not source.strip():
        raise RequestError("must be a URL: http:, https:, data: or file:.", where=where)
    url = source.strip()
    scheme = url[:8].partition(":")[0].lower()
    if scheme not in ("http", "https", "data", "file"):
        raise RequestError(
            f'"{url[:32]}" is not a URL that media can have.',
            where=where,
            fix="send http:, https:, file:, or data:image/png;base64,... with the data in it.",
            code="media_invalid",
        )
    if scheme != "data" and len(url) > MAX_URL_CHARS:
        raise RequestError(f"has more than {MAX_URL_CHARS} characters.", where=where)
    return url


def _input_audio(part: Mapping[str, Any], item: MediaItem) -> MediaItem:
    where = f"{item.where}.input_audio"
    given = part.get("input_audio")
    if given is None and item.uuid is not None:
        return item
    if not isinstance(given, Mapping) or not isinstance(given.get("data"), str):
        raise RequestError("must hold data, in base64, and its format.", where=where)
    word = given.get("format")
    if not isinstance(word, str) or not 0 < len(word) <= 16:
        raise RequestError("must be a format, such as wav or mp3.", where=f"{where}.format")
    return replace(item, data=given["data"], format=word)


def _tensors(given: Any, where: str) -> str | dict[str, str]:
    if isinstance(given, str) and given:
        return given
    if isinstance(given, Mapping) and 0 < len(given) <= MAX_TENSORS:
        texts = {str(name): text for name, text in given.items() if isinstance(text, str) and text}
        if len(texts) == len(given):
            return texts
    raise RequestError(
        f"must be a tensor in base64 (safetensors or torch.save), or up to {MAX_TENSORS} by name.",
        where=where,
    )


def _uuid(part: Mapping[str, Any], where: str) -> str | None:
    uuid = part.get("uuid")
    if uuid is None:
        return None
    if not isinstance(uuid, str) or not 0 < len(uuid) <= MAX_UUID_CHARS:
        raise RequestError(
            f"must be text of 1 to {MAX_UUID_CHARS} characters.", where=f"{where}.uuid"
        )
    return uuid
