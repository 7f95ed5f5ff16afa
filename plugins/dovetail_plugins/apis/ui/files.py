"""PageFiles: the files of the page, each read once, and the headers that restrict the page."""

from __future__ import annotations

import hashlib
import re
from dataclasses import dataclass, field
from pathlib import Path

from starlette.requests import Request
from starlette.responses import Response

FOLDER = Path(__file__).with_name("static")
PAGE = "index.html"
_NAME = re.compile(r"[a-z_]+\.(css|js|svg)", re.ASCII)
TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
POLICY = "; ".join(
    (
        "default-src 'none'",
        "script-src 'self'",
        "style-src 'self'",
        "connect-src 'self'",
        "img-src 'self' data:",
        "media-src blob:",
        "base-uri 'none'",
        "form-action 'none'",
        "frame-ancestors 'none'",
        "require-trusted-types-for 'script'",
        "trusted-types 'none'",
    )
)
"""Content-Security-Policy: nothing is loaded from or sent elsewhere, and text never becomes
markup."""

HEADERS = {
    "Content-Security-Policy": POLICY,
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "no-cache",  # revalidated every time, and answered with 304
}


@dataclass(frozen=True, slots=True, kw_only=True)
class PageFile:
    """A file's bytes with their content type and ETag."""

    content: bytes
    media_type: str
    etag: str

    def response(self, request: Request) -> Response:
        """Return the file, or 304 if the client has it already. Source: RFC 9110, section
        13.1.2."""
        headers = {**HEADERS, "ETag": self.etag}
        known = request.headers.get("if-none-match", "")
        tags = {tag.strip().removeprefix("W/") for tag in known.split(",")}
        if self.etag in tags or "*" in tags:
            return Response(status_code=304, headers=headers)
        return Response(self.content, media_type=self.media_type, headers=headers)


@dataclass(slots=True, kw_only=True)
class PageFiles:
    """The files requested so far, by name."""

    _read: dict[str, PageFile] = field(default_factory=dict)

    def page(self) -> PageFile:
        """Return the page itself. Mutates: self"""
        return self._get(PAGE)

    def part(self, name: str) -> PageFile | None:
        """Return a script, a style sheet or the icon; None for other names. Mutates: self"""
        is_part = _NAME.fullmatch(name) is not None and (FOLDER / name).is_file()
        return self._get(name) if is_part else None

    def _get(self, name: str) -> PageFile:
        if name not in self._read:
            self._read[name] = _read(FOLDER / name)
        return self._read[name]


def _read(path: Path) -> PageFile:
    content = path.read_bytes()
    return PageFile(
        content=content,
        media_type=TYPES[path.suffix[1:]],
        etag=f'"{hashlib.sha256(content).hexdigest()[:32]}"',
    )
