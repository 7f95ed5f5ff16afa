"""Constraints that are meant to take long or much, sent over HTTP while streams run: each costs its
own request at most. Every way of asking; the backends whose processes begin quickly, since a
constraint that takes too long ends one. The others are in
tests/plugins/structured_output/test_bounds.py.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from dovetail import registry
from dovetail.errors import PluginError
from dovetail.interfaces.data.constraint import (
    Choice,
    Constraint,
    Grammar,
    JsonSchema,
    Literal,
    Regex,
)
from support.hostile_constraints import HOSTILE
from support.server_process import ServerProcess
from support.server_rig import NUM_STREAMS, Crowd, demo_rig

pytestmark = pytest.mark.e2e

KINDS = (
    *("required members", "itself by two", "laughs", "counts", "twentieth from the end"),
    *("brackets", "choice", "left recursion", "deep grammar"),
)
WORST = ("laughs", "twentieth from the end")
MAX_CHOICES = 4096
LIMIT_S = 0.5
"""To compile. How soon a refusal comes is held by test_bounds.py of the same folder of plugins and
measured by benchmarks/constraint_bounds.py."""


@pytest.fixture(scope="module")
def rig() -> Iterator[Any]:
    """Return a server of the demo model with a control request and known streams."""
    limits = ("--port", "0", "--max-body-bytes", "2000000", "--dtype", "float32")
    said = {"compile_limit_s": LIMIT_S, "backends": ",".join(installed())}
    flags = [f"--structured-outputs-config.{key}={value}" for key, value in said.items()]
    with ServerProcess(*limits, *flags) as server:
        found = demo_rig(server.wait_ready())
        with found.client:
            found.learn()
            yield found


def constraint(constraint: Constraint) -> dict[str, Any]:
    """Return a constraint as the field of `structured_outputs` that asks for it."""
    match constraint:
        case JsonSchema(schema):
            return {"json": schema}
        case Regex(regex):
            return {"regex": regex}
        case Grammar(text):
            return {"grammar": text}
        case Choice(parts):
            texts = [part.text for part in parts if isinstance(part, Literal)]
            return {"choice": texts[:MAX_CHOICES]}
    raise AssertionError(constraint)


def ways() -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield each kind of constraint by the usual field, and one schema by all the other fields."""
    yield from ((word, {"structured_outputs": constraint(HOSTILE[word])}) for word in KINDS)
    schema = constraint(HOSTILE["laughs"])["json"]
    tag = {"begin": "<a>", "schema": schema, "end": "</a>"}
    wrapped = {"type": "json_schema", "json_schema": {"name": "a", "schema": schema}}
    yield "response_format", {"response_format": wrapped}
    yield "guided_json", {"guided_json": schema}
    yield "tags", {"response_format": {"type": "structural_tag", "structures": [tag]}}
    brackets = "[" * 20_000
    yield "brackets", {"guided_json": brackets}
    yield "brackets in a tag", {"structured_outputs": {"structural_tag": brackets}}
    yield "deep schema", {"guided_json": '{"not":' * 3_000 + "{}" + "}" * 3_000}
    yield "half a pair", {"structured_outputs": {"json": {"enum": ["\ud800"]}}}
    yield "half a pair in a word", {"structured_outputs": {"choice": ["a", "\udfff"]}}
    half = {"begin": "\ud800", "schema": {}, "end": "x"}
    yield (
        "half a pair in a tag",
        {"response_format": {"type": "structural_tag"} | {"structures": [half]}},
    )
    yield "no expression", {"structured_outputs": {"regex": "(("}}
    yield "no schema", {"structured_outputs": {"json": {"type": 7}}}


def installed() -> Iterator[str]:
    """Yield the backends that work here, of those that begin quickly."""
    for name in ("guidance", "outlines"):
        try:
            registry.load("structured_output_backend", name)
        except PluginError:
            continue
        yield name


def send(rig: Any, word: str, fields: dict[str, Any]) -> None:
    """Ask with a constraint, and fail unless it is enforced or refused."""
    body = {"messages": [{"role": "user", "content": "Hello"}], "max_tokens": 4, **fields}
    data = json.dumps(body).encode()  # in ASCII: what is not Unicode can be written, too
    response: httpx.Response = rig.client.post("/v1/chat/completions", content=data, timeout=60.0)
    found = response.json()
    if response.status_code == 200:
        assert found["choices"][0]["finish_reason"] in ("length", "stop"), word
    else:
        # 503: constraints before it took too long.
        assert response.status_code in (400, 503), f"{word}: {response.text[:300]}"
        assert found["error"]["code"], f"{word}: {response.text[:300]}"
        assert "\n" not in found["error"]["message"], "no library's state is told"


def test_hostile_constraints_cost_their_own_request(rig: Any) -> None:
    lines = [" ".join(process.cmdline()) for process in rig.server.descendants()]
    assert any("compile_worker" in line for line in lines), "prepared before the first request"
    for name in installed():  # its vocabulary is ready from now on
        send(rig, name, {"structured_outputs": {"regex": "[ab]", "backend": name}})
    crowd = Crowd(rig)
    for word, fields in ways():
        send(rig, word, fields)
        assert crowd.faults == [], word
    for name in installed():
        for word in WORST:
            asked = constraint(HOSTILE[word]) | {"backend": name}
            send(rig, f"{word}, {name}", {"structured_outputs": asked})
    rig.check()
    crowd.stop()
    assert crowd.faults == []
    assert crowd.num_whole >= NUM_STREAMS
    busy = [child for child in rig.server.descendants() if _cpu_s(child) > 0.3]
    assert busy == [], "nothing computes once everything is refused"


def _cpu_s(process: Any) -> float:
    """Return the processor time that a process takes within half a second."""
    before = process.cpu_times()
    time.sleep(0.5)
    after = process.cpu_times()
    return float(after.user + after.system - before.user - before.system)
