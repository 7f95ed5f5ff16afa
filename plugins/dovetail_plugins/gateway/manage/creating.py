"""POST /api/create and /api/copy: further names for models, with settings of their own.

Source: Ollama's API reference, "Create a Model" and "Copy a Model".
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec
from starlette.requests import Request
from starlette.responses import JSONResponse, Response

from dovetail.config.checkpoint.stores.gguf_names import ENDING
from dovetail.config.checkpoint.stores.stored import StoredModel
from dovetail.errors import ConfigError, RequestError
from dovetail_plugins.apis.ollama.response import MEDIA_TYPE, encoded, line
from dovetail_plugins.created_models.blobs import PREFIX
from dovetail_plugins.created_models.names import digits_of, file_name, full_name
from dovetail_plugins.created_models.store import CREATED, Record
from dovetail_plugins.gateway.catalogue import Catalogue
from dovetail_plugins.gateway.manage.bodies import CopyBody, CreateBody, read_body
from dovetail_plugins.gateway.manage.management import Management, management_of
from dovetail_plugins.gateway.memory_need import need_of
from dovetail_plugins.modelfile.creation import of_request
from dovetail_plugins.modelfile.fields import fields_of
from dovetail_plugins.modelfile.model import Modelfile

OWN_FILES = "files"
"""What a Modelfile's base is called while the model's own files stand for it."""


async def copy_model(request: Request) -> Response:
    """Give a model a further name. Raises: RequestError"""
    management = management_of(request)
    body = await read_body(request, CopyBody)
    name = full_name(body.destination, "destination")
    record = await asyncio.to_thread(_base_of, management.catalogue, body.source, "source")
    await _put(management, name, record)
    return Response(status_code=200)


async def create_model(request: Request) -> Response:
    """Make a model; answer with Ollama's status lines once it is there. Raises: RequestError"""
    management = management_of(request)
    body = await read_body(request, CreateBody)
    name = full_name(body.named, "model")
    record = await asyncio.to_thread(_record_of, management.catalogue, body)
    await _put(management, name, record)
    if body.stream is False:
        return JSONResponse({"status": "success"})
    texts = [*_statuses(record), "writing manifest", "success"]
    lines = b"".join(line(encoded({"status": text})) for text in texts)
    return Response(lines, media_type=MEDIA_TYPE)


def _statuses(record: Record) -> list[str]:
    found = [f"using existing layer sha256:{digits}" for digits in sorted(record.digests)]
    left_out = [one for one in fields_of(record.modelfile).left_out if one != "LICENSE"]
    if left_out:
        found.append(f"left out, as it has no equal here: {', '.join(left_out)}")
    return found


def _record_of(catalogue: Catalogue, body: CreateBody) -> Record:
    """Return the model that a request describes. Raises: RequestError"""
    if body.quantize:
        raise RequestError(
            "a server does not quantize models.",
            where="quantize",
            fix="`dovetail quantize` does, on the server's machine.",
            code="unsupported_field",
        )
    blobs = catalogue.created.blobs
    files = _files(body.files, "files", blobs.check)
    adapters = _files(body.adapters, "adapters", blobs.check)
    fields = msgspec.to_builtins(body) | {"files": None, "adapters": None}
    if files:
        fields["from"] = OWN_FILES
    try:
        described = of_request(fields, lambda digest: _blob(digest, blobs.check))
    except ConfigError as error:
        raise _as_request_error(error) from error
    if described.projectors:
        raise RequestError("FROM may stand once.", where="modelfile", fix="send `files`.")
    if files:
        old = Record(modelfile=Modelfile(base=""), files=files)
    else:
        old = _base_of(catalogue, described.base, "from")
    return _merged(old, described, adapters or _of_paths(described.adapters, "adapter"))


def _merged(old: Record, new: Modelfile, adapters: Mapping[str, str]) -> Record:
    """Return a base's record with what a Modelfile sets."""
    before = old.modelfile
    modelfile = replace(
        new,
        base=before.base,
        projectors=(),
        parameters={**before.parameters, **new.parameters},
        template=new.template or before.template,
        system=new.system or before.system,
        messages=new.messages or before.messages,
        licenses=new.licenses or before.licenses,
        adapters=(),
    )
    if adapters and old.adapters:
        raise RequestError("the base has an adapter already.", where="adapters")
    return Record(modelfile=modelfile, files=old.files, adapters=dict(adapters) or old.adapters)


def _base_of(catalogue: Catalogue, name: str, where: str) -> Record:
    """Return the record of a base: a model's name, or the path of one of this machine's models.
    Raises: RequestError for anything else"""
    digits = Path(name).name.removeprefix(PREFIX)
    if name == str(catalogue.created.blobs.path(digits)):
        return Record(modelfile=Modelfile(base=""), files={f"model{ENDING}": digits})
    model = catalogue.find(name) or _by_path(catalogue, name)
    if model is None:
        raise RequestError(
            f"{name[:256]!r} is no model of this machine.",
            where=where,
            fix="name one that GET /v1/models lists, pull it first, or upload its file. A path may "
            "only be that of such a model.",
            code="model_not_found",
            status=404,
        )
    record = catalogue.created.get(model.name) if model.store == CREATED else None
    return Record(modelfile=Modelfile(base=model.name)) if record is None else record


def _by_path(catalogue: Catalogue, name: str) -> StoredModel | None:
    if os.sep not in name or "\0" in name:
        return None
    path = Path(name).resolve()
    return next((one for one in catalogue.models() if one.path.resolve() == path), None)


def _files(
    given: Mapping[str, str] | None, where: str, check: Callable[[str, str], Path]
) -> dict[str, str]:
    """Return uploaded files as name -> digits. Raises: RequestError for a path or a missing blob"""
    found = {}
    for name, digest in (given or {}).items():
        digits = digits_of(digest, f"{where}.{name[:80]}")
        check(digits, where)
        found[file_name(name, where)] = digits
    if len(found) == 1 and not (only := next(iter(found))).endswith(ENDING):
        found = {f"{only}{ENDING}": found[only]}  # a model in one file is a GGUF file
    return found


def _blob(digest: str, check: Callable[[str, str], Path]) -> str:
    return str(check(digits_of(digest, "modelfile"), "modelfile"))


def _of_paths(paths: tuple[str, ...], kind: str) -> dict[str, str]:
    """Return the files of a request's Modelfile. Raises: RequestError unless they are blobs"""
    found = {}
    for number, path in enumerate(paths):
        digits = Path(path).name.removeprefix(PREFIX)
        if len(digits) != 64:
            raise RequestError(
                f"{path[:256]!r} was not uploaded.",
                where="modelfile",
                fix="upload the file, and name its digest in adapters.",
            )
        found[f"{kind}{number}{ENDING}"] = digits
    return found


async def _put(management: Management, name: str, record: Record) -> None:
    """Check a model, and store it in place of an older one once that is out of memory. Raises:
    RequestError"""
    catalogue, fleet = management.catalogue, management.fleet
    async with management.lock:
        there = await asyncio.to_thread(_exactly, catalogue, name)
        known = fleet.known(name)
        is_named_at_start = known is not None and known.entry.path is None
        if is_named_at_start or (there is not None and there.store != CREATED):
            whose = there.store if there is not None else "the command line"
            raise RequestError(
                f'the name "{name}" belongs to a model of {whose}.', fix="use another name."
            )
        await asyncio.to_thread(_checked_put, catalogue, name, record)
        catalogue.forget()
        await management.let_go(name)


def _exactly(catalogue: Catalogue, name: str) -> StoredModel | None:
    found = catalogue.find(name)
    return found if found is not None and found.name == name else None


def _checked_put(catalogue: Catalogue, name: str, record: Record) -> None:
    """Store a model; if it could not be served, the older one of this name stays. Raises:
    RequestError"""
    old = catalogue.created.get(name)
    try:
        catalogue.created.put(name, record)
        catalogue.forget()
        model = catalogue.find(name)
        if model is None:
            raise ConfigError("it cannot be read back.", where=name)
        need_of(catalogue.entry(model))
        catalogue.created.drop_blobs(old)
    except (ConfigError, OSError) as error:
        _undo(catalogue, name, old)
        raise _as_request_error(error) from error


def _undo(catalogue: Catalogue, name: str, old: Record | None) -> None:
    if old is None:
        catalogue.created.remove(name)
    else:
        catalogue.created.put(name, old)
    catalogue.forget()


def _as_request_error(error: Exception) -> RequestError:
    if isinstance(error, ConfigError):
        return RequestError(error.what, where=error.where, fix=error.fix)
    return RequestError(f"the model cannot be stored: {error}.", status=507)
