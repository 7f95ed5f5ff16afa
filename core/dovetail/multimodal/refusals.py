"""Errors for media that are refused before decoding."""

from __future__ import annotations

from dovetail.errors import RequestError
from dovetail.interfaces.data.media_settings import MIB
from dovetail.multimodal.content import MediaItem

_NO_MEDIA = frozenset(
    {
        "application/json",
        "application/xml",
        "application/xhtml+xml",
        "application/pdf",
        "application/javascript",
    }
)


def check_content_type(item: MediaItem, content_type: str) -> None:
    """Raise RequestError if a medium's content type is clearly not media."""
    name = content_type.partition(";")[0].strip().lower()
    if name == "image/svg+xml":
        raise svg_refused(item)
    main = name.partition("/")[0]
    if main in ("text", "multipart", "font", "message") or name in _NO_MEDIA:
        raise fetch_failed(item, f'its type is "{name[:64]}", which {item.modality} cannot have.')


def svg_refused(item: MediaItem) -> RequestError:
    """Return the error for SVG drawings, which could refer to other files and run forever."""
    return RequestError(
        "SVG drawings are not supported.",
        where=item.where,
        fix="send it as PNG.",
        code="media_invalid",
    )


def too_large(item: MediaItem, max_bytes: int) -> RequestError:
    """Return the error for a medium with too many bytes."""
    return RequestError(
        f"it is too large: {max_bytes / MIB:g} MiB are the most of this kind ({item.modality}).",
        where=item.where,
        code="media_too_large",
    )


def fetch_failed(item: MediaItem, what: str) -> RequestError:
    """Return the error for a medium that its URL does not deliver."""
    return RequestError(what, where=item.where, code="media_fetch_failed")
