"""The parts of a multipart/form-data body, as used for uploads. Source: RFC 7578, RFC 2046."""

from __future__ import annotations

from dataclasses import dataclass
from email.message import Message

from dovetail.errors import RequestError

MAX_PARTS = 32


@dataclass(frozen=True, slots=True, kw_only=True)
class FormField:
    """One field of a form; `filename` is empty if it is not a file."""

    filename: str
    data: bytes


FILE_FORM = "send a form (multipart/form-data) with the fields file and purpose."


def parts_of(content_type: str, body: bytes) -> dict[str, FormField]:
    """Return the fields of a form by name. Raises: RequestError"""
    return dict(form_parts(content_type, body, FILE_FORM))


def form_parts(content_type: str, body: bytes, wanted: str) -> list[tuple[str, FormField]]:
    """Return (name, field) pairs of a form; a name may occur twice. `wanted` is the error text for
    another content type. Raises: RequestError"""
    head = Message()
    head["content-type"] = content_type
    boundary = head.get_param("boundary")
    if head.get_content_type() != "multipart/form-data" or not isinstance(boundary, str):
        raise RequestError(wanted)
    sections = (b"\r\n" + body).split(b"\r\n--" + boundary.encode("utf-8", "replace"))
    if len(sections) < 3 or not sections[-1].startswith(b"--"):
        raise RequestError("the form is cut off.")
    if len(sections) > MAX_PARTS:
        raise RequestError(f"the form has more than {MAX_PARTS} fields.")
    return [_part(section) for section in sections[1:-1]]


def _part(section: bytes) -> tuple[str, FormField]:
    lines, _, data = section.partition(b"\r\n\r\n")
    head = Message()
    for line in lines.decode("utf-8", "replace").split("\r\n"):
        field, _, value = line.partition(":")
        if field.strip():
            head[field.strip()] = value.strip()
    name = head.get_param("name", header="content-disposition")
    if not isinstance(name, str):
        raise RequestError("a part of the form has no name.")
    return name, FormField(filename=head.get_filename() or "", data=data)
