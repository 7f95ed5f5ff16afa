"""Names of created models, as Ollama writes them: [HOST/][NAMESPACE/]MODEL[:TAG].

Source: Ollama's documentation of the API, "Model names".
"""

from __future__ import annotations

import re

from dovetail.errors import RequestError

LATEST = ":latest"
MAX_CHARS = 160
_PART = r"[A-Za-z0-9_][A-Za-z0-9_.-]*"
_NAME = re.compile(rf"(?:{_PART}/){{0,2}}{_PART}(?::{_PART})?", re.ASCII)
_FILE = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_. +@-]{0,200}", re.ASCII)
_DIGEST = re.compile(r"sha256[:-]([0-9a-f]{64})")


def full_name(name: str, where: str) -> str:
    """Return a name with its tag. Raises: RequestError for what is no name, such as a path"""
    if not _NAME.fullmatch(name) or ".." in name or len(name) > MAX_CHARS:
        raise RequestError(
            f"{name[:MAX_CHARS]!r} cannot be the name of a model.",
            where=where,
            fix="write MODEL, MODEL:TAG or NAMESPACE/MODEL:TAG of letters, digits, - _ and dots.",
        )
    return name if ":" in name else name + LATEST


def file_name(name: str, where: str) -> str:
    """Return the name of an uploaded file. Raises: RequestError for a path"""
    if not _FILE.fullmatch(name):
        raise RequestError(
            f"{name[:MAX_CHARS]!r} cannot be the name of a file.",
            where=where,
            fix="send names without folders, such as model.gguf.",
        )
    return name


def digits_of(digest: str, where: str) -> str:
    """Return the hexadecimal digits of sha256:... Raises: RequestError for other texts"""
    found = _DIGEST.fullmatch(digest)
    if found is None:
        raise RequestError(
            "is not a digest.", where=where, fix="write sha256: and 64 digits of 0-9a-f."
        )
    return found[1]
