"""Making a model: from a request's fields to a record in the store, checked before it is stored."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import msgspec

from dovetail.config.checkpoint.sources.gguf_names import ENDING
from dovetail.errors import ConfigError, RequestError
from dovetail.interfaces.model_store import StoredModel
from dovetail_plugins.created_models.blobs import PREFIX
from dovetail_plugins.created_models.names import digits_of, file_name
from dovetail_plugins.created_models.store import CREATED, Record
from dovetail_plugins.gateway.catalogue import Catalogue
from dovetail_plugins.gateway.manage.bodies import CreateBody
from dovetail_plugins.gateway.memory_need import need_of
from dovetail_plugins.modelfile.creation import of_request
from dovetail_plugins.modelfile.model import Modelfile

OWN_FILES = "files"
"""What a Modelfile's base is called while the model's own files stand for it."""


def record_of(catalogue: Catalogue, body: CreateBody) -> Record:
    """Return the model that a request describes. Raises: RequestError"""
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
    return record_from(catalogue, described, files, adapters)


def record_from(
    catalogue: Catalogue,
    described: Modelfile,
    files: Mapping[str, str],
    adapters: Mapping[str, str],
) -> Record:
    """Return the model of a Modelfile. `files` and `adapters` are blobs (file name -> digits) in
    place of those that it names. Raises: RequestError"""
    if described.projectors:
        raise RequestError("FROM may stand once.", where="modelfile", fix="send `files`.")
    if files:
        old = Record(modelfile=Modelfile(base=""), files=dict(files))
    else:
        old = base_of(catalogue, described.base, "from")
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


def base_of(catalogue: Catalogue, name: str, where: str) -> Record:
    """Return the record of a base: a model's name, or the path of one of this machine's models.
    Raises: RequestError for anything else"""
    digits = Path(name).name.removeprefix(PREFIX)
    if name == str(catalogue.created.blobs.path(digits)):
        return Record(modelfile=Modelfile(base=""), files={f"model{ENDING}": digits})
    model = catalogue.find(name) or _by_path(catalogue, name)
    if model is None:
        raise RequestError(
            f"{name[:256]!r} is not a model of this machine.",
            where=where,
            fix="name one that `dovetail list` shows, pull it first, or upload its file. A path "
            "may only be that of such a model.",
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


def checked_put(catalogue: Catalogue, name: str, record: Record) -> None:
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
