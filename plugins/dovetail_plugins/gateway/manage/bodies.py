"""The bodies of requests that manage models. Source: Ollama's API reference; llama.cpp's server
documentation for /models/load and /models/unload."""

from __future__ import annotations

from typing import Any, TypeVar

import msgspec
from starlette.requests import Request

from dovetail.errors import RequestError
from dovetail.json_values import InvalidJson, json_struct


class ModelBody(msgspec.Struct):
    """A body that names a model; `name` is the field's older name."""

    model: str = ""
    name: str = ""

    @property
    def named(self) -> str:
        """Return the name. Raises: RequestError if there is none"""
        return _present(self.model or self.name, "model")


class PullBody(ModelBody):
    """A model to fetch. `insecure` has no effect: nothing is fetched without TLS checks."""

    stream: bool | None = True
    insecure: bool | None = False


class CopyBody(msgspec.Struct):
    """A model, and its further name."""

    source: str = ""
    destination: str = ""


class CreateBody(PullBody):
    """A model to make of another one or of uploaded files (file name -> digest)."""

    from_: str | None = msgspec.field(default=None, name="from")
    files: dict[str, str] | None = None
    adapters: dict[str, str] | None = None
    template: str | None = None
    system: str | None = None
    license: str | list[str] | None = None
    parameters: dict[str, Any] | None = None
    messages: list[dict[str, Any]] | None = None
    quantize: str | None = None
    modelfile: str | None = None


Kind = TypeVar("Kind", bound=msgspec.Struct)


async def read_body(request: Request, kind: type[Kind]) -> Kind:
    """Return the JSON body, whatever its content type. Raises: RequestError"""
    try:
        body: Kind = json_struct(await request.body(), kind)
    except InvalidJson as error:
        raise RequestError(f"the request body {error}", code="invalid_json") from None
    return body


def _present(value: str, field: str) -> str:
    if not value:
        raise RequestError("is missing.", where=field, fix="name a model.")
    return value
