"""--structured-outputs-config, from each of its keys to what a request's constraint then is and
gets."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

pytest.importorskip("dovetail_plugins")

from dovetail import registry
from dovetail.config.config import Config
from dovetail.config.resolve import resolve
from dovetail.errors import ConfigError, RequestError
from dovetail.interfaces.data.constraint import Constraint, Grammar, JsonSchema
from dovetail.interfaces.data.spec import StructuredOutputSpec
from dovetail.server.generate.tools.structured_outputs import requested_constraint
from dovetail.structured_output.compile_worker import CompileJob, CompileResult
from dovetail.structured_output.compiler import ConstraintCompiler
from dovetail.structured_output.select_backend import select_backend
from dovetail_plugins.apis.completions.protocol import CompletionRequest
from dovetail_testing.contract import skipping_unavailable

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
GRAMMAR = Grammar('root ::= "a" root "b" | "c"')
PLAIN = "outlines"
"""A backend of regular expressions: it cannot hold an answer to a grammar."""


def spec_of(**keys: Any) -> StructuredOutputSpec:
    """Return what the flag with these keys comes to."""
    for name in (PLAIN, "guidance"):
        with skipping_unavailable():
            registry.load("structured_output_backend", name)
    structured_output = resolve(
        Config.from_fields({"structured_outputs_config": keys})
    ).run.structured_output
    assert structured_output is not None
    return structured_output


def constraint_of(spec: StructuredOutputSpec) -> Constraint:
    body = CompletionRequest.model_validate({"prompt": "x", "structured_outputs": {"json": SCHEMA}})
    asked = requested_constraint(body, None, spec)
    assert asked is not None
    return asked.constraint


@pytest.mark.parametrize("name", [PLAIN, "guidance"])
def test_the_backend_that_is_named_is_taken(name: str) -> None:
    assert select_backend(spec_of(backend=name), [JsonSchema(SCHEMA)], None, "f") == name
    only = spec_of(backends=name)
    assert [backend.name for backend in only.backends] == [name]
    with pytest.raises(ConfigError, match=r"structured-outputs-config\.backend"):
        spec_of(backend="no-such")


def test_others_are_tried_unless_that_is_forbidden() -> None:
    assert select_backend(spec_of(backend=PLAIN), [GRAMMAR], None, "f") != PLAIN
    with pytest.raises(RequestError, match=PLAIN):
        select_backend(spec_of(backend=PLAIN, disable_fallback=True), [GRAMMAR], None, "f")


def test_how_json_is_written() -> None:
    assert constraint_of(spec_of()) == JsonSchema(SCHEMA)
    assert constraint_of(spec_of(disable_any_whitespace=True)) == JsonSchema(SCHEMA, "")
    closed = JsonSchema({**SCHEMA, "additionalProperties": False})
    assert constraint_of(spec_of(disable_additional_properties=True)) == closed


@pytest.mark.parametrize(("cache_bytes", "num_compiled"), [(1 << 20, 2), (10, 4)])
def test_bounds(cache_bytes: int, num_compiled: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A cache that holds one constraint compiles each of two anew; the limit is the other's own
    test."""
    compiled: list[CompileJob] = []

    async def counted(self: ConstraintCompiler, job: CompileJob, where: str) -> CompileResult:
        compiled.append(job)
        return CompileResult(artifact=b"artifact", rewritten=job.constraint)

    async def body(spec: StructuredOutputSpec) -> None:
        compiler = ConstraintCompiler(spec)
        for name in "abab":
            await compiler.compile(JsonSchema({"const": name}), where="f")
        await compiler.close()

    monkeypatch.setattr(ConstraintCompiler, "_compiled", counted)
    spec = spec_of(backend="guidance", cache_bytes=cache_bytes, compile_limit_s=3)
    assert spec.compile_limit_s == 3.0
    asyncio.run(body(spec))
    assert len(compiled) == num_compiled


def test_an_unknown_key_is_an_error() -> None:
    with pytest.raises(ConfigError, match="backnd"):
        spec_of(backnd="guidance")
