"""Files in the input (parts of type input_file): the text of text files.

Whether a file is text is decided by its bytes, whatever its name or type says.
Source: the OpenAI API reference, responses: file inputs.
"""

from __future__ import annotations

import base64
import binascii
import codecs
import json
import re
from collections.abc import Mapping
from typing import Any
from urllib.parse import unquote_to_bytes

from dovetail.errors import RequestError

PDF = b"%PDF-"
_ENCODINGS = {
    codecs.BOM_UTF8: "utf-8-sig",
    codecs.BOM_UTF32_LE: "utf-32",
    codecs.BOM_UTF32_BE: "utf-32",
    codecs.BOM_UTF16_LE: "utf-16",
    codecs.BOM_UTF16_BE: "utf-16",
}
"""What a file begins with -> its encoding. The longer marks come first."""
_CONTROL = re.compile("[\x00-\x08\x0e-\x1a\x1c-\x1f]")
"""Characters that no text has."""
_SEND = "send the file itself in file_data, in base64 or as a data: URL."


def text_of_file(part: Mapping[str, Any], where: str) -> str:
    """Return a file's text with its name, as the model sees it. Raises: RequestError"""
    for name, reason in (
        ("file_id", "files are not kept here."),
        ("file_url", "files are not fetched."),
    ):
        if part.get(name) is not None:
            raise RequestError(reason, where=f"{where}.{name}", fix=_SEND, code="unsupported_field")
    at = f"{where}.file_data"
    given = part.get("file_data")
    if not isinstance(given, str):
        raise RequestError("must be text.", where=at, fix=_SEND)
    title = part.get("filename") or "file"
    if not isinstance(title, str):
        raise RequestError("must be text.", where=f"{where}.filename")
    text = _decoded(_bytes_of(given, at), at)
    return f"<file name={json.dumps(title, ensure_ascii=False)}>\n{text}\n</file>"


def _bytes_of(given: str, where: str) -> bytes:
    """Return the bytes of base64 or of a data: URL. Raises: RequestError"""
    data, is_base64 = given, True
    if given[:5].lower() == "data:":
        head, comma, data = given.partition(",")
        if not comma:
            raise RequestError("is a data: URL without data.", where=where, fix=_SEND)
        is_base64 = head.lower().endswith(";base64")
    if not is_base64:
        return unquote_to_bytes(data)
    try:
        return base64.b64decode("".join(data.split()), validate=True)
    except (binascii.Error, ValueError) as error:
        raise RequestError("is not base64.", where=where, fix=_SEND) from error


def _decoded(data: bytes, where: str) -> str:
    """Return the text of a file. Raises: RequestError for files that are not text"""
    if data.startswith(PDF):
        raise RequestError(
            "is a PDF file; only text files are read.",
            where=where,
            fix="send its text, or images of its pages as input_image.",
            code="unsupported_field",
        )
    encoding = next((name for mark, name in _ENCODINGS.items() if data.startswith(mark)), "utf-8")
    try:
        text = data.decode(encoding)
    except UnicodeDecodeError:
        text = "\0"
    if _CONTROL.search(text):
        raise RequestError(
            "is not a text file; only text files are read.",
            where=where,
            fix="send its text, in UTF-8 or UTF-16.",
            code="unsupported_field",
        )
    return text.replace("\r\n", "\n")
