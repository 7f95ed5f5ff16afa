"""What is refused of a medium before it is decoded, and in which words."""

from __future__ import annotations

from dovetail.errors import RequestError
from dovetail.interfaces.media_settings import MIB
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
    """Raise RequestError where a medium is said to be something else altogether."""
    name = content_type.partition(";")[0].strip().lower()
    if name == "image/svg+xml":
        raise svg_refused(item)
    main = name.partition("/")[0]
    if main in ("text", "multipart", "font", "message") or name in _NO_MEDIA:
        raise fetch_failed(item, f'its type is "{name[:64]}", which {item.modality} cannot have.')


def svg_refused(item: MediaItem) -> RequestError:
    """Return the error for drawings, which could name other files and run for ever."""
    return RequestError(
        "SVG drawings are not supported.",
        where=item.where,
        fix="send it as PNG.",
        code="media_invalid",
    )


def too_large(item: MediaItem, max_bytes: int) -> RequestError:
    """Return the error for a medium of too many bytes."""
    return RequestError(
        f"it is too large: {max_bytes / MIB:g} MiB are the most of this kind ({item.modality}).",
        where=item.where,
        code="media_too_large",
    )


def fetch_failed(item: MediaItem, what: str) -> RequestError:
    """Return the error for a medium that its URL does not give."""
    return RequestError(what, where=item.where, code="media_fetch_failed")
