"""Fetching from ModelScope: the list of a model's files, and each file, with resumed downloads.

Files are saved in the folders of ModelScope's own tools (models/ORG/MODEL, a dot written as three
underscores), as NAME.part until complete. Only public models. Source: ModelScope's client, and the
HTTP API that it uses, /api/v1/models/ORG/MODEL/repo and .../repo/files.
"""

from __future__ import annotations

import hashlib
import http.client
import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import quote, urlencode
from urllib.request import Request, urlopen

from dovetail.json_values import json_value

DOMAIN = "www.modelscope.cn"
BRANCH = "master"
TIMEOUT_S = 20.0
READ_BYTES = 1 << 20
MAX_TRIES = 5
PART = ".part"
DOT = "___"


class DownloadError(OSError):
    """ModelScope's answer is not what was requested."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RepoFile:
    """A file of a model; `sha256` is empty if it is unknown."""

    path: str
    num_bytes: int
    sha256: str


def cache_folder(given: str | None = None) -> Path:
    """Return ModelScope's cache folder: the given one, MODELSCOPE_CACHE, or the default."""
    folder = given or os.environ.get("MODELSCOPE_CACHE")
    return Path(folder or "~/.cache/modelscope/hub").expanduser()


def folder_of(name: str, revision: str | None = None, cache: str | None = None) -> Path:
    """Return a model's folder, which need not exist; each revision has its own."""
    place = "models" if revision is None else f"revisions/{quote(revision, safe='')}"
    return cache_folder(cache) / place / name.replace(".", DOT)


def listed(name: str, revision: str | None) -> list[RepoFile]:
    """Return the files of a model. Raises: OSError, ValueError for an answer that is not a list"""
    query = urlencode({"Revision": revision or BRANCH, "Recursive": "true"})
    with _opened(f"{_base(name)}/repo/files?{query}") as response:
        answer = json_value(response.read())
    files = (answer.get("Data") or {}).get("Files") if isinstance(answer, dict) else None
    if not isinstance(files, list):
        said = answer.get("Message") if isinstance(answer, dict) else None
        raise DownloadError(f"ModelScope lists no files of {name}: {said or 'no reason is given'}")
    return [_file(one) for one in files if one.get("Type") != "tree"]


def download(
    name: str, revision: str | None, names: Sequence[str], cache: str | None = None
) -> Path:
    """Return the folder with these files, fetching the missing ones. Raises: OSError, ValueError"""
    folder = folder_of(name, revision, cache)
    files = {one.path: one for one in listed(name, revision)}
    for path in names:
        target = folder / path
        if not target.is_file() or target.stat().st_size != files[path].num_bytes:
            target.parent.mkdir(parents=True, exist_ok=True)
            _fetch(name, revision, files[path], target)
    return folder


def _file(facts: dict[str, Any]) -> RepoFile:
    """Return a file of the list. Raises: DownloadError for a path outside of the folder"""
    path = str(facts["Path"])
    if PurePosixPath(path).is_absolute() or ".." in PurePosixPath(path).parts:
        raise DownloadError(f"ModelScope names a file {path!r}")
    size, digest = int(facts.get("Size") or 0), str(facts.get("Sha256") or "")
    return RepoFile(path=path, num_bytes=size, sha256=digest)


def _fetch(name: str, revision: str | None, file: RepoFile, target: Path) -> None:
    """Download a file, resuming an earlier attempt. Raises: OSError unless it is complete"""
    from tqdm import tqdm

    query = urlencode({"Revision": revision or BRANCH, "FilePath": file.path})
    part = target.with_name(target.name + PART)
    before = part.stat().st_size if part.is_file() else 0
    with tqdm(
        total=file.num_bytes, initial=before, unit="B", unit_scale=True, desc=file.path
    ) as bar:
        for _ in range(MAX_TRIES):
            _append(f"{_base(name)}/repo?{query}", part, file.num_bytes, bar)
            if part.stat().st_size == file.num_bytes:
                break
    _check(part, file)
    part.replace(target)


def _append(url: str, part: Path, num_bytes: int, bar: Any) -> None:
    """Append to a part until the connection breaks. Raises: OSError if the server refuses"""
    start = part.stat().st_size if part.is_file() else 0
    if start == num_bytes and start:
        return
    headers = {"Range": f"bytes={start}-"} if start else {}
    with _opened(url, headers) as response:
        is_going_on = response.status == http.client.PARTIAL_CONTENT
        if start and not is_going_on:
            bar.update(-start)  # the server sends the whole file again
        with part.open("ab" if is_going_on else "wb") as stream:
            while block := _block(response):
                stream.write(block)
                bar.update(len(block))


def _block(response: Any) -> bytes:
    """Return the next bytes; none if the connection broke, since the rest is requested again."""
    try:
        return bytes(response.read1(READ_BYTES))
    except (http.client.IncompleteRead, ConnectionError, TimeoutError):
        return b""


def _check(part: Path, file: RepoFile) -> None:
    """Raise DownloadError for a file that differs from the list; it is deleted."""
    size = part.stat().st_size
    if size < file.num_bytes:
        raise DownloadError(f"{file.path} broke off at byte {size} of {file.num_bytes}")
    digest = hashlib.sha256()
    with part.open("rb") as stream:
        while block := stream.read(READ_BYTES):
            digest.update(block)
    if size != file.num_bytes or (file.sha256 and digest.hexdigest() != file.sha256):
        part.unlink()
        raise DownloadError(f"{file.path} is damaged: its size or its SHA-256 is another")


def _base(name: str) -> str:
    """Return the URL of a model; MODELSCOPE_DOMAIN may name another site."""
    site = os.environ.get("MODELSCOPE_DOMAIN") or DOMAIN
    root = site if site.startswith(("http://", "https://")) else f"https://{site}"
    return f"{root.rstrip('/')}/api/v1/models/{quote(name)}"


@contextmanager
def _opened(url: str, headers: dict[str, str] | None = None) -> Iterator[Any]:
    """Yield the response to a GET request. Raises: OSError"""
    request = Request(url, headers={"User-Agent": "dovetail", **(headers or {})})
    with urlopen(request, timeout=TIMEOUT_S) as response:
        yield response
