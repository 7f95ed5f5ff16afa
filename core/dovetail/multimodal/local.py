"""Media from file: URLs, from one folder and nothing outside it.

The path is opened name by name, from the folder's own descriptor: links are not followed, mounts
are not entered, and the opened file is the one that was checked. Only regular files with content
are read: no pipes, devices or files that a kernel generates on reading.
"""

from __future__ import annotations

import os
import stat
from pathlib import PurePosixPath
from urllib.parse import unquote_to_bytes, urlsplit

from dovetail.errors import RequestError
from dovetail.interfaces.data.media_settings import MediaSettings
from dovetail.multimodal.content import MediaItem
from dovetail.multimodal.refusals import too_large

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_FILE = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY


def read_local(item: MediaItem, settings: MediaSettings) -> bytes:
    """Return the bytes of the file in an item's URL. Blocks. Raises: RequestError"""
    if settings.local_path is None:
        raise _refused(item, "files of the server are not read here.", "send a data: URL.")
    names = _names(item, settings.local_path)
    try:
        return _read(item, settings, names)
    except FileNotFoundError:
        raise _refused(item, "there is no such file.") from None
    except OSError:
        raise _refused(item, "the file cannot be read; links are not followed.") from None


def _names(item: MediaItem, root: str) -> tuple[str, ...]:
    """Return the names from the folder down to the file. Raises: RequestError"""
    assert item.url is not None
    try:
        url = urlsplit(item.url)
        path = unquote_to_bytes(url.path).decode()
    except ValueError:
        raise _refused(item, "the URL is invalid.") from None
    if url.netloc not in ("", "localhost") or url.query or url.fragment or "\0" in path:
        raise _refused(item, "a file is named by file:///FOLDER/FILE alone.")
    names = PurePosixPath(path).parts
    top = PurePosixPath(root).parts
    if ".." in names or names[: len(top)] != top or len(names) == len(top):
        raise _refused(item, "the file is not in the folder of --allowed-local-media-path.")
    return names[len(top) :]


def _read(item: MediaItem, settings: MediaSettings, names: tuple[str, ...]) -> bytes:
    assert settings.local_path is not None
    at = os.open(settings.local_path, _FOLDER)
    device = os.fstat(at).st_dev
    try:
        for name, flags in [*((name, _FOLDER) for name in names[:-1]), (names[-1], _FILE)]:
            inner = os.open(name, flags, dir_fd=at)
            os.close(at)
            at = inner
            if os.fstat(at).st_dev != device:
                raise _refused(item, "the file is on another file system than its folder.")
        found = os.fstat(at)
        if not stat.S_ISREG(found.st_mode):
            raise _refused(item, "the file is a folder, a pipe or a device.")
        return _contents(item, at, found.st_size, settings.max_bytes[item.modality])
    finally:
        os.close(at)


def _contents(item: MediaItem, fd: int, size: int, max_bytes: int) -> bytes:
    if size > max_bytes:
        raise too_large(item, max_bytes)
    if not size:
        raise _refused(item, "the file is empty.")
    with open(fd, "rb", closefd=False) as file:
        return file.read(size)


def _refused(item: MediaItem, what: str, fix: str | None = None) -> RequestError:
    return RequestError(what, where=item.where, fix=fix, code="media_forbidden")
