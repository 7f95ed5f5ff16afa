"""Detects file formats by their first bytes; only formats that cannot refer to other files.

The sound and video decoder gets the format explicitly: if it guessed, it would also read playlists
and fetch the files that they name.
"""

from __future__ import annotations

import re

_BEGINNINGS = (
    (re.compile(rb".{4}ftyp", re.DOTALL), "mp4"),
    (re.compile(rb"\x1a\x45\xdf\xa3"), "matroska"),
    (re.compile(rb"RIFF.{4}AVI ", re.DOTALL), "avi"),
    (re.compile(rb"RIFF.{4}WAVE|RF64.{4}WAVE", re.DOTALL), "wav"),
    (re.compile(rb"OggS"), "ogg"),
    (re.compile(rb"fLaC"), "flac"),
    (re.compile(rb"FLV\x01"), "flv"),
    (re.compile(rb"\xff[\xf0\xf1\xf8\xf9]"), "aac"),
    (re.compile(rb"ID3|\xff[\xe2-\xe7\xf2-\xf7\xfa-\xff]"), "mp3"),
    (re.compile(rb"\x47.{187}\x47", re.DOTALL), "mpegts"),
    (re.compile(rb"\x00\x00\x01\xba"), "mpeg"),
)
SOUND = frozenset({"mp4", "matroska", "wav", "ogg", "flac", "aac", "mp3"})
VIDEO = frozenset({"mp4", "matroska", "avi", "ogg", "flv", "mpegts", "mpeg"})
_DRAWING = re.compile(rb"\s*(<\?xml|<!DOCTYPE\s+svg|<!--|<svg)", re.IGNORECASE)
HEAD_BYTES = 512


def container(data: bytes) -> str | None:
    """Return the format name of sound or video, None if unknown."""
    head = data[:HEAD_BYTES]
    return next((name for begins, name in _BEGINNINGS if begins.match(head)), None)


def is_drawing(data: bytes) -> bool:
    """Return whether bytes look like SVG."""
    head = data[:HEAD_BYTES].removeprefix(b"\xef\xbb\xbf")
    return _DRAWING.match(head) is not None or head.startswith(b"\x1f\x8b")
