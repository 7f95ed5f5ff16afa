"""POST /slots/{id}: save the last prompt of a slot under a name, and restore it after a restart.

A saved prompt is a small file with its token ids, in the folder of the KV connector, which has the
blocks of the prompt. To restore it is to read them from there into the cache; blocks that have been
evicted, and the last tokens, which do not fill a block, are computed again. Source: the API page of
llama.cpp's server, /slots/{id_slot}?action=save.
"""

from __future__ import annotations

import asyncio
import time
from contextlib import aclosing
from pathlib import Path
from typing import Any, NoReturn

import msgspec
from fastapi import Request
from starlette.responses import JSONResponse, Response

from dovetail.errors import RequestError
from dovetail.interfaces.data.spec import EngineSpec
from dovetail.json_values import InvalidJson, json_struct
from dovetail.server.endpoint import (
    App,
    Generation,
    ServerOf,
    SessionPlan,
    generation_for,
    response_meta,
)
from dovetail_plugins.apis.llamacpp.errors import not_supported
from dovetail_plugins.apis.llamacpp.prompts import token_ids
from dovetail_plugins.apis.llamacpp.protocol import CompletionRequest, SlotRequest
from dovetail_plugins.apis.llamacpp.response import LLAMA
from dovetail_plugins.apis.llamacpp.slots import SlotPrompt, Slots, SlotsOf
from dovetail_plugins.durable_files import write_whole

FOLDER = "slots"
"""Where the files are, in the connector's folder."""
MAX_FILES = 4096
MAX_NAME_BYTES = 200
ACTIONS = ("save", "restore", "erase")


class SavedPrompt(msgspec.Struct, frozen=True, kw_only=True):
    """A file. `identity` is that of the engine's blocks, `model` the model's or adapter's name."""

    identity: str
    model: str
    token_ids: list[int]


def slot_prompt(generation: Generation) -> SlotPrompt | None:
    """Return the prompt of a slot; None if no other request may use its prefix, or it has media."""
    if generation.cache_salt or generation.parts or generation.beams is not None:
        return None
    return SlotPrompt(model=generation.meta.model, token_ids=generation.prompt_ids)


async def change_slot(
    id_slot: int,
    request: Request,
    server: ServerOf,
    slots: SlotsOf,
    action: str = "",
    body: SlotRequest | None = None,
) -> Response:
    """Save the last prompt of a slot to a file, or restore it."""
    num_slots = server.engine.spec.total_rows
    if not 0 <= id_slot < num_slots:
        raise RequestError(f"must be 0 to {num_slots - 1}.", where="id_slot")
    if action not in ACTIONS:
        raise RequestError(f"must be {', '.join(ACTIONS)}.", where="action")
    if action == "erase":
        _refuse_erase()
    path = _folder(server, action) / _file_name(body)
    started_s = time.monotonic()
    if action == "save":
        found = await _save(server, slots, id_slot, path)
    else:
        found = await _restore(server, slots, id_slot, path, request)
    spent = {f"{action}_ms": 1e3 * (time.monotonic() - started_s)}
    return JSONResponse({"id_slot": id_slot, "filename": path.name, **found, "timings": spent})


def _refuse_erase() -> NoReturn:
    raise not_supported(
        "a slot does not have its own cache: all requests share the prefixes that are cached.",
        where="action=erase",
        fix="send cache_prompt false with a request, or POST /reset_prefix_cache to a server with "
        "--enable-dev-endpoints, which drops the prefixes of all requests.",
    )


def _folder(server: App, action: str) -> Path:
    """Return the folder of saved prompts. Raises: RequestError without a connector that writes
    blocks to files and reads them again, and with several API processes"""
    place = f"action={action}"
    folder = _block_folder(server.engine.spec)
    if folder is None:
        raise not_supported(
            "blocks of prompts are not written to files.",
            where=place,
            fix="start the server with --kv-transfer-config and the connector shared_storage.",
        )
    if server.frontend.api_server_count > 1:
        raise not_supported(
            "each of several API processes has its own slots.",
            where=place,
            fix="start the server with --api-server-count 1.",
        )
    return folder / FOLDER


def _block_folder(spec: EngineSpec) -> Path | None:
    """Return the folder of the engine's connector, or of the first of several that has one."""
    transfer = spec.run.transfer
    if transfer is None or not (transfer.saves and transfer.loads):
        return None
    options = transfer.connector.options
    nested: Any = options.get("connectors", ())
    for one in (options, *(each["options"] for each in nested)):
        if one.get("folder"):
            return Path(one["folder"]).expanduser()
    return None


def _file_name(body: SlotRequest | None) -> str:
    """Return the name of a file in the folder. Raises: RequestError"""
    name = (body.filename if body is not None else None) or ""
    is_plain = name.isprintable() and not set(name) & set('/\\:*?"<>|')
    if not name or not is_plain or name.startswith(".") or name.endswith((" ", ".")):
        raise RequestError("must be the name of a file, without a folder.", where="filename")
    if len(name.encode("utf-8", "replace")) > MAX_NAME_BYTES:
        raise RequestError(f"is longer than {MAX_NAME_BYTES} bytes.", where="filename")
    return name


async def _save(server: App, slots: Slots, slot: int, path: Path) -> dict[str, Any]:
    """Write a slot's prompt. Raises: RequestError"""
    prompt = slots.last.get(slot)
    if prompt is None:
        raise RequestError(
            f"slot {slot} has no prompt that can be saved.",
            where="id_slot",
            fix="send a /completion without media, with cache_prompt and without cache_salt, and "
            "name the id_slot of its answer.",
        )
    transfer = server.engine.spec.run.transfer
    assert transfer is not None
    saved = SavedPrompt(
        identity=transfer.identity, model=prompt.model, token_ids=list(prompt.token_ids)
    )
    data = msgspec.json.encode(saved)
    try:
        await asyncio.to_thread(_write, path, data)
    except OSError as error:
        why = error.strerror or str(error)
        raise RequestError(f"cannot be written: {why}.", where="filename", status=507) from error
    return {"n_saved": len(saved.token_ids), "n_written": len(data)}


def _write(path: Path, data: bytes) -> None:
    """Write a file that only this user may read. Raises: OSError, RequestError"""
    path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    if not path.exists() and sum(1 for _ in path.parent.iterdir()) >= MAX_FILES:
        raise RequestError(
            f"{MAX_FILES} prompts are saved.",
            where="filename",
            fix=f"use the name of one that may go, or remove files of {path.parent}.",
        )
    write_whole(path, data)


async def _restore(
    server: App, slots: Slots, slot: int, path: Path, request: Request
) -> dict[str, Any]:
    """Read a prompt's blocks into the cache. Raises: RequestError"""
    try:
        data = await asyncio.to_thread(path.read_bytes)
    except OSError as error:
        why = error.strerror or str(error)
        raise RequestError(f"{path.name} cannot be read: {why}.", where="filename") from error
    saved = _saved_prompt(server, path.name, data)
    with server.admission.admit(1):
        await _compute(server, saved, request)
    slots.hold(slot, SlotPrompt(model=saved.model, token_ids=tuple(saved.token_ids)))
    return {"n_restored": len(saved.token_ids), "n_read": len(data)}


def _saved_prompt(server: App, name: str, data: bytes) -> SavedPrompt:
    """Return the content of a file. Raises: RequestError"""
    transfer = server.engine.spec.run.transfer
    assert transfer is not None
    try:
        saved = json_struct(data, SavedPrompt)
    except InvalidJson as error:
        raise RequestError(
            f"{name} is not a saved prompt: it {error}", where="filename", fix="save it again."
        ) from error
    if saved.identity != transfer.identity:
        raise RequestError(
            f"{name} was saved by a server with another model or other flags.",
            where="filename",
            fix="start the server as it was started then, or save the prompt again.",
        )
    return saved


async def _compute(server: App, saved: SavedPrompt, request: Request) -> None:
    """Run a prompt for one token, so that all of its full blocks are in the cache."""
    limit = server.engine.spec.run.max_model_tokens - 1
    body = CompletionRequest(model=saved.model, max_tokens=1)
    text, model = await server.text_for(saved.model)
    meta = response_meta(server, text, body, request, model, ())
    ids = await token_ids(text, saved.token_ids[:limit])
    one = generation_for(text, body, meta, ids, {"max_tokens": 1}, SessionPlan(), LLAMA)
    async with aclosing(one.steps(server, is_whole=True)) as steps:
        async for _ in steps:
            pass
