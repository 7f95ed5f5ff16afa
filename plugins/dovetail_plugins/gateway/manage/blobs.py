"""HEAD and POST /api/blobs/sha256:HEX: files that a model can be made of.

Source: Ollama's API reference, "Check if a Blob Exists" and "Push a Blob".
"""

from __future__ import annotations

import asyncio

from starlette.requests import Request
from starlette.responses import Response

from dovetail_plugins.created_models.blobs import Upload
from dovetail_plugins.created_models.names import digits_of
from dovetail_plugins.gateway.manage.management import management_of

PIECE_BYTES = 1 << 20


async def check_blob(request: Request) -> Response:
    """Answer 200 if there is such a file, else 404. Raises: RequestError"""
    blobs = management_of(request).catalogue.created.blobs
    digits = digits_of(request.path_params["digest"], "digest")
    return Response(status_code=200 if await asyncio.to_thread(blobs.touch, digits) else 404)


async def upload_blob(request: Request) -> Response:
    """Store the body, which must have the digest of the path. Answer 201; 200 if the file is here.
    Raises: RequestError"""
    created = management_of(request).catalogue.created
    digits = digits_of(request.path_params["digest"], "digest")
    if await asyncio.to_thread(created.blobs.touch, digits):
        async for _ in request.stream():
            pass
        return Response(status_code=200)
    await asyncio.to_thread(lambda: created.blobs.prune(created.used()))
    length = request.headers.get("content-length", "")
    size = int(length[:20]) if length.isdecimal() else None
    with await asyncio.to_thread(created.blobs.upload, digits, size) as upload:
        await _receive(request, upload)
        await asyncio.to_thread(upload.finish)
    return Response(status_code=201)


async def _receive(request: Request, upload: Upload) -> None:
    """Write the body in large pieces. Raises: RequestError, ClientDisconnect"""
    piece = bytearray()
    async for data in request.stream():
        piece += data
        if len(piece) >= PIECE_BYTES:
            await asyncio.to_thread(upload.write, bytes(piece))
            piece.clear()
    await asyncio.to_thread(upload.write, bytes(piece))
