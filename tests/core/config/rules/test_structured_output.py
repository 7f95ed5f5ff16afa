"""--structured-outputs-config, from each of its keys to what a request's form then is and gets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("dovetail_plugins")

from dovetail import registry
from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.errors import ConfigError, RequestError
from dovetail.guided.choose import choose_backend
from dovetail.guided.compile_worker import Job
from dovetail.guided.compiler import GuideCompiler
from dovetail.interfaces.form import Form, Grammar, Json
from dovetail.interfaces.spec import GuidedSpec
from dovetail.server.api.completions.protocol import CompletionRequest
from dovetail.server.generate.structured_outputs import requested_constraint
from dovetail.testing.contract import skipping_unavailable

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
GRAMMAR = Grammar('root ::= "a" root "b" | "c"')
PLAIN = "outlines"
"""A backend of regular expressions: it cannot hold an answer to a grammar."""


def spec_of(**keys: Any) -> GuidedSpec:
    """Return what the flag with these keys comes to."""
    for name in (PLAIN, "guidance"):
        with skipping_unavailable():
            registry.load("guided_decoding_backend", name)
    guided = resolve(Config.from_fields({"structured_outputs_config": keys})).run.guided
    assert guided is not None
    return guided


def form_of(spec: GuidedSpec) -> Form:
    body = CompletionRequest.model_validate({"prompt": "x", "structured_outputs": {"json": SCHEMA}})
    asked = requested_constraint(body, None, spec)
    assert asked is not None
    return asked.form


@pytest.mark.parametrize("name", [PLAIN, "guidance"])
def test_the_backend_that_is_named_is_taken(name: str) -> None:
    assert choose_backend(spec_of(backend=name), [Json(SCHEMA)], None, "f") == name
    only = spec_of(backends=name)
    assert [backend.name for backend in only.backends] == [name]
    with pytest.raises(ConfigError, match=r"structured-outputs-config\.backend"):
        spec_of(backend="no-such")


def test_others_are_tried_unless_that_is_forbidden() -> None:
    assert choose_backend(spec_of(backend=PLAIN), [GRAMMAR], None, "f") != PLAIN
    with pytest.raises(RequestError, match=PLAIN):
        choose_backend(spec_of(backend=PLAIN, disable_fallback=True), [GRAMMAR], None, "f")


def test_how_json_is_written() -> None:
    assert form_of(spec_of()) == Json(SCHEMA)
    assert form_of(spec_of(disable_any_whitespace=True)) == Json(SCHEMA, "")
    closed = Json({**SCHEMA, "additionalProperties": False})
    assert form_of(spec_of(disable_additional_properties=True)) == closed


@pytest.mark.parametrize(("cache_bytes", "num_compiled"), [(1 << 20, 2), (10, 4)])
def test_bounds(cache_bytes: int, num_compiled: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that holds one form compiles each of two anew; the limit is the other's own test."""
    compiled: list[Job] = []

    async def counted(self: GuideCompiler, job: Job, where: str) -> bytes:
        compiled.append(job)
        return b"artifact"

    async def body(spec: GuidedSpec) -> None:
        guides = GuideCompiler(spec)
        for name in "abab":
            await guides.guide(Json({"const": name}), where="f")
        await guides.close()

    monkeypatch.setattr(GuideCompiler, "_compiled", counted)
    spec = spec_of(backend="guidance", cache_bytes=cache_bytes, compile_limit_s=3)
    assert spec.compile_limit_s == 3.0
    asyncio.run(body(spec))
    assert len(compiled) == num_compiled


def test_an_unknown_key_is_an_error() -> None:
    with pytest.raises(ConfigError, match="backnd"):
        spec_of(backnd="guidance")
