"""The `quantize` of /api/create: a model is quantized by a process of its own into one GGUF file.

Source: Ollama's API reference, "Quantize a model".
"""

from __future__ import annotations

import asyncio
import tempfile
from collections.abc import AsyncGenerator
from dataclasses import replace
from pathlib import Path

import msgspec

from dovetail import registry
from dovetail.errors import RequestError
from dovetail.json_values import InvalidJson, json_value
from dovetail_plugins.created_models.store import Record, served
from dovetail_plugins.gateway.catalogue import Catalogue
from dovetail_plugins.gateway.manage.lines import Line, lines_of
from dovetail_plugins.quantizers._gguf import FILE

MODULE = "dovetail_plugins.gateway.manage.quantize_child"
WORK = "quantizing-"
"""What the names of folders begin with in which files are written."""
PREFIX = "gguf-"
"""What the names of quantizers begin with that write GGUF files."""


def method_of(name: str) -> str:
    """Return the quantizer for a type's name in any case, such as q4_K_M. Raises: RequestError"""
    method = f"{PREFIX}{name.lower()}"
    known = [one for one in registry.names("quantizer") if one.startswith(PREFIX)]
    if method not in known:
        types = ", ".join(one.removeprefix(PREFIX) for one in sorted(known))
        raise RequestError(f"must be one of {types}.", where="quantize")
    return method


async def quantized(
    catalogue: Catalogue, record: Record, name: str, found: list[Record]
) -> AsyncGenerator[Line, None]:
    """Yield the lines of quantizing a model to a type; at the end `found` has the new model, unless
    the last line is an error. Mutates: found"""
    root = catalogue.created.folder
    root.mkdir(parents=True, exist_ok=True)
    temporary = tempfile.TemporaryDirectory(prefix=WORK, dir=root, ignore_cleanup_errors=True)
    with temporary as folder:
        out = Path(folder) / "out"
        place = await asyncio.to_thread(_place, catalogue, record, Path(folder) / "in")
        boot = {"model": str(place), "method": method_of(name), "out": str(out), "type": name}
        last: Line = {}
        # The child may remove the folder once it is let go, so the file is taken before.
        async with lines_of(MODULE, boot, leftovers=[folder]) as reader:
            while data := await reader.readline():
                last = _line(data)
                if last and last.get("status") != "success":
                    yield last
            if last.get("status") == "success":
                digits = await asyncio.to_thread(catalogue.created.blobs.add, out / FILE)
    if last.get("status") != "success":
        if "error" not in last:
            yield {"error": "quantizing ended before it was complete; create the model again."}
        return
    yield {"status": f"creating new layer sha256:{digits}"}
    modelfile = replace(record.modelfile, base="")
    found.append(msgspec.structs.replace(record, modelfile=modelfile, files={FILE: digits}))


def _line(data: bytes) -> Line:
    """Return a line; an empty one if the process ended within it."""
    try:
        found: Line = json_value(data)
    except InvalidJson:
        return {}
    return found


def _place(catalogue: Catalogue, record: Record, folder: Path) -> Path:
    """Return where the weights of a model are; uploaded files are linked into a folder. Raises:
    RequestError for a model that is gone"""
    if not record.files:
        model = catalogue.find(record.modelfile.base)
        if model is None or model.fault:
            why = "it is gone" if model is None else model.fault
            raise RequestError(f"{record.modelfile.base}: {why}.", where="from")
        return model.path
    folder.mkdir()
    for file, digits in record.files.items():
        (folder / file).symlink_to(catalogue.created.blobs.path(digits))
    return served(folder)
