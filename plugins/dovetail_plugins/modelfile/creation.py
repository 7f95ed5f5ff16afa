"""A Modelfile from the JSON of /api/create.

Source: https://github.com/ollama/ollama/blob/main/docs/api.md, "Create a Model".
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from dovetail.errors import RequestError
from dovetail_plugins.modelfile.model import STOP, ExampleMessage, Modelfile, example, parameter
from dovetail_plugins.modelfile.reading import read

FIELDS = frozenset(
    {
        *("from", "files", "adapters", "template", "license", "system", "parameters"),
        *("messages", "quantize", "quantization", "requires", "modelfile"),
    }
)
"""Fields that say what the model is. The others say its name, and how the answer is sent."""
DIGEST = re.compile(r"sha256[:-][0-9a-f]{64}")
PathOf = Callable[[str], str]


def of_request(body: Mapping[str, Any], path_of: PathOf) -> Modelfile:
    """Return the Modelfile that a request describes; its fields override those of a `modelfile`
    in it. `path_of` returns the path of an uploaded blob, by its digest, and raises for unknown
    ones. Raises: RequestError in the request's field names, ConfigError for lines of a Modelfile"""
    text = _text(body, "modelfile")
    start = _with_blobs(read(text), path_of) if text else Modelfile(base="")
    base = _text(body, "from") or _file(body, path_of) or start.base
    if not base:
        raise RequestError("the model is missing.", where="from", fix="send from, or files.")
    return replace(
        start,
        base=base,
        template=_text(body, "template") or start.template,
        system=_text(body, "system") or start.system,
        parameters={**start.parameters, **_parameters(body)},
        adapters=_adapters(body, path_of) or start.adapters,
        licenses=_licenses(body) or start.licenses,
        messages=_messages(body) or start.messages,
        requires=_text(body, "requires") or start.requires,
        quantize=_text(body, "quantize") or _text(body, "quantization"),
    )


def _text(body: Mapping[str, Any], name: str) -> str:
    value = body.get(name)
    if value is not None and not isinstance(value, str):
        raise RequestError("must be a text.", where=name)
    return value or ""


def _with_blobs(modelfile: Modelfile, path_of: PathOf) -> Modelfile:
    """Return a Modelfile whose blobs, which older clients name as @sha256:..., are paths."""

    def path(name: str) -> str:
        digest = name.removeprefix("@")
        return path_of(digest) if name != digest and DIGEST.fullmatch(digest) else name

    adapters = tuple(path(name) for name in modelfile.adapters)
    return replace(modelfile, base=path(modelfile.base), adapters=adapters)


def _digests(body: Mapping[str, Any], where: str) -> dict[str, str]:
    """Return the files of a field, as name -> digest. Raises: RequestError"""
    files = body.get(where) or {}
    if not isinstance(files, Mapping):
        raise RequestError("must be an object of file names and digests.", where=where)
    for name, digest in files.items():
        if not isinstance(digest, str) or not DIGEST.fullmatch(digest):
            raise RequestError(
                "is not a digest.", where=f"{where}.{name}", fix="write sha256: and 64 digits."
            )
    return dict(files)


def _file(body: Mapping[str, Any], path_of: PathOf) -> str:
    """Return the path of the one GGUF file of a request. Raises: RequestError for several"""
    files = _digests(body, "files")
    if len(files) > 1:
        raise RequestError(
            f"a model of {len(files)} files cannot be created from blobs.",
            where="files",
            fix="convert it to one GGUF file, or serve its folder: `dovetail serve FOLDER`.",
            code="unsupported_field",
        )
    return next((path_of(digest) for digest in files.values()), "")


def _adapters(body: Mapping[str, Any], path_of: PathOf) -> tuple[str, ...]:
    return tuple(path_of(digest) for digest in _digests(body, "adapters").values())


def _parameters(body: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters by name. Raises: RequestError, ConfigError for a value"""
    given = body.get("parameters") or {}
    if not isinstance(given, Mapping):
        raise RequestError("must be an object.", where="parameters")
    found: dict[str, Any] = {}
    for name, value in given.items():
        where = f"parameters.{name}"
        if name == STOP:
            stops = value if isinstance(value, list) else [value]
            found[name] = tuple(parameter(name, one, where) for one in stops)
        else:
            found[name] = parameter(name, value, where)
    return found


def _licenses(body: Mapping[str, Any]) -> tuple[str, ...]:
    given = body.get("license") or ()
    texts = [given] if isinstance(given, str) else given
    if not isinstance(texts, list | tuple) or not all(isinstance(one, str) for one in texts):
        raise RequestError("must be a text or a list of texts.", where="license")
    return tuple(texts)


def _messages(body: Mapping[str, Any]) -> tuple[ExampleMessage, ...]:
    given = body.get("messages") or ()
    if not isinstance(given, list | tuple):
        raise RequestError("must be a list.", where="messages")
    found = []
    for i, message in enumerate(given):
        where = f"messages[{i}]"
        texts = message if isinstance(message, Mapping) else {}
        role, content = texts.get("role"), texts.get("content")
        if not (isinstance(role, str) and isinstance(content, str)):
            raise RequestError("needs a role and a content, both texts.", where=where)
        found.append(example(role, content, where))
    return tuple(found)
