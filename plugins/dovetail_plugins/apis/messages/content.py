"""Content blocks as parts of chat messages: texts, images, documents, search results.

A part is a text or a chat part. Source: the Anthropic API reference, messages.
"""

from __future__ import annotations

import base64
import binascii
from collections.abc import Sequence
from typing import Any

from pydantic import ValidationError

from dovetail.errors import RequestError
from dovetail.server.endpoint import Content, is_left_out, joined
from dovetail_plugins.apis.messages.protocol import Block
from dovetail_plugins.apis.messages.words import BLOCKS

Part = str | dict[str, Any]
PDF = "application/pdf"
UNSEEN = "[The result has an image here, which this model cannot see.]"
TEXT_KINDS = ("text/", "application/json", "application/xml", "application/x-", "application/yaml")
"""How the media types of text files begin."""


def content_of(content: str | Sequence[Block], where: str) -> Content:
    """Return blocks as the content of one message. Raises: RequestError"""
    return content if isinstance(content, str) else joined(parts_of(content, where))


def parts_of(blocks: Sequence[Block], where: str, start: int = 0) -> list[Part]:
    """Return the parts of blocks, the first of which has the number `start`, without those that are
    left out. Raises: RequestError"""
    parts: list[Part] = []
    for number, block in enumerate(blocks, start):
        if not is_left_out(BLOCKS, block.type):
            parts += _parts(block, f"{where}[{number}]")
    return parts


def text_of(content: str | Sequence[Block], where: str) -> str:
    """Return the text of blocks that must be text, a line between them. Raises: RequestError"""
    if isinstance(content, str):
        return content
    return "\n".join(text_of_block(block, f"{where}[{i}]") for i, block in enumerate(content))


def text_of_block(block: Block, where: str) -> str:
    """Return the text of a block. Raises: RequestError if it has more than text"""
    parts = _parts(block, where)
    texts = [part for part in parts if isinstance(part, str)]
    if len(texts) < len(parts):
        raise _unsupported(block, where)
    return "\n".join(texts)


def result_of(block: Block, where: str) -> Content:
    """Return the content of a tool's result; that of a failed call says so. Raises:
    RequestError"""
    if isinstance(block.content, dict):
        raise RequestError("must be text or a list of blocks.", where=f"{where}.content")
    content = content_of(block.content or "", f"{where}.content")
    return _failed(content) if block.is_error else content


def with_notes(blocks: list[Block]) -> list[Block]:
    """Return blocks with a note in place of each image in a tool's result."""
    return [
        block.model_copy(update={"content": [_noted(one) for one in block.content]})
        if block.type == "tool_result" and isinstance(block.content, list)
        else block
        for block in blocks
    ]


def _noted(block: Block) -> Block:
    return Block(type="text", text=UNSEEN) if block.type == "image" else block


def _failed(content: Content) -> Content:
    """Return the content of a failed call, which begins with the word "Error": templates have no
    field for failures."""
    if isinstance(content, str):
        return content if "error" in content[:32].lower() else f"Error: {content}"
    return ["Error:", *content]


def _parts(block: Block, where: str) -> list[Part]:
    match BLOCKS[block.type].read_as if block.type in BLOCKS else "":
        case "text" if block.text is None:
            raise RequestError("a text block without text.", where=where)
        case "text":
            return [block.text or ""]
        case "image":
            return [_image(block, where)]
        case "document":
            return _document(block, where)
        case "found":
            content = _listed(block.content, where)
            source = block.source if isinstance(block.source, str) else None
            found = text_of(content, f"{where}.content")
            return [_lines(block.title, source, found)]
        case "compaction":
            return [block.content] if isinstance(block.content, str) else []
    raise _unsupported(block, where)


def _unsupported(block: Block, where: str) -> RequestError:
    return RequestError(
        f'blocks of type "{block.type[:64]}" are not supported here.',
        where=where,
        code="unsupported_field",
    )


def _image(block: Block, where: str) -> dict[str, Any]:
    source = block.source if isinstance(block.source, dict) else {}
    kind, data = source.get("type"), source.get("data")
    if kind == "url" and isinstance(source.get("url"), str):
        return {"type": "image_url", "image_url": {"url": source["url"]}}
    if kind == "base64" and isinstance(data, str):
        name = str(source.get("media_type", ""))[:64]
        return {"type": "image_url", "image_url": {"url": f"data:{name};base64,{data}"}}
    raise RequestError(
        "must hold data (type base64) or a URL (type url); files are not kept here.",
        where=f"{where}.source",
        code="unsupported_field",
    )


def _document(block: Block, where: str) -> list[Part]:
    """Return a document as text: its title, its context and its content."""
    source = block.source if isinstance(block.source, dict) else {}
    where = f"{where}.source"
    kind, data = source.get("type"), source.get("data")
    if kind == "content":
        parts = _inner(source.get("content"), f"{where}.content")
    elif kind == "text" and isinstance(data, str):
        parts = [data]
    elif kind == "base64" and isinstance(data, str):
        parts = [_decoded(data, str(source.get("media_type", "")), where)]
    else:
        raise _no_document("documents are read from the request: URLs and files are not.", where)
    head = _lines(block.title, block.context)
    if isinstance(parts[0] if parts else "", str):
        return [_lines(head, *parts[:1]), *parts[1:]]
    return [head, *parts] if head else parts


def _inner(content: Any, where: str) -> list[Part]:
    """Return the parts of a document's own content, texts and images. Raises: RequestError"""
    if isinstance(content, str):
        return [content]
    try:
        blocks = [Block.model_validate(one) for one in content or ()]
    except (ValidationError, TypeError) as error:
        raise RequestError("must be text or a list of text blocks.", where=where) from error
    for number, block in enumerate(blocks):
        if block.type not in ("text", "image"):
            raise _unsupported(block, f"{where}[{number}]")
    return parts_of(blocks, where)


def _decoded(data: str, media_type: str, where: str) -> str:
    """Return the text of a document in base64. Raises: RequestError"""
    if media_type == PDF:
        raise _no_document("a PDF is not read here: it has no text but a drawing of one.", where)
    if not media_type.startswith(TEXT_KINDS):
        raise _no_document(f'documents of type "{media_type[:64]}" are not read here.', where)
    try:
        return base64.b64decode(data, validate=True).decode()
    except (binascii.Error, ValueError) as error:
        raise RequestError("must be text of UTF-8 in base64.", where=f"{where}.data") from error


def _no_document(what: str, where: str) -> RequestError:
    return RequestError(
        what,
        where=where,
        fix='send its text: {"type": "text", "media_type": "text/plain", "data": TEXT}.',
        code="unsupported_field",
    )


def _listed(content: Any, where: str) -> str | Sequence[Block]:
    """Return a search result's content. Raises: RequestError if it is neither text nor blocks"""
    if isinstance(content, dict):
        raise RequestError("must be text or a list of blocks.", where=f"{where}.content")
    return content or ""


def _lines(*texts: str | Part | None) -> str:
    return "\n".join(text for text in texts if isinstance(text, str) and text)
