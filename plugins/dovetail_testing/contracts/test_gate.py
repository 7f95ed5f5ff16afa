"""Gate: every request reaches the application or gets a whole answer, and open routes stay open."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.interfaces.gate import Gate, GateFacts
from dovetail.observability.caller import CALLER
from dovetail_testing.contract import default_options

OPEN = "/health"
CAN_ANSWER: dict[str, Any] = {"websocket.http.response": {}}
FLAGS: tuple[dict[str, Any], ...] = ({}, {"api_key": ("sk-of-this-test",)})


def new_gate(plugin: Any, **flags: Any) -> Gate:
    """Return a gate with its default options, in a server with these flags."""
    facts = GateFacts(
        frontend=FrontendConfig(**flags), is_open=lambda scope: scope["path"] == OPEN, models=("m",)
    )
    gate: Gate = plugin(default_options(plugin), facts)
    return gate


def passed(gate: Gate, kind: str = "http", path: str = OPEN, **more: Any) -> tuple[list[Any], Any]:
    """Return the messages that are sent in answer to a request, and the scope that the application
    got (None: none)."""
    sent: list[Any] = []
    seen: list[Any] = []

    async def app(scope: Any, receive: Any, send: Any) -> None:
        seen.append(dict(scope))
        if kind == "http":
            await send({"type": "http.response.start", "status": 204, "headers": []})
            await send({"type": "http.response.body", "body": b""})

    async def receive() -> Any:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": kind, "method": "POST", "path": path, "headers": [], "query_string": b"",
        "root_path": "", "state": {"request_id": "r", "error_bodies": NoBodies()}, **more,
    }  # fmt: skip

    asyncio.run(gate.enter(app, scope, receive, send))
    assert len(seen) <= 1
    return sent, seen[0] if seen else None


class NoBodies:
    """Every path has OpenAI's error bodies."""

    def body_of(self, path: str) -> None:
        """Return None."""


class TestGate:
    """Clauses of gates."""

    kind = "gate"

    @pytest.mark.parametrize("flags", FLAGS)
    def test_open_routes_are_open(self, plugin: Any, flags: dict[str, Any]) -> None:
        """A request for an open route reaches the application unchanged, with keys or without."""
        sent, scope = passed(new_gate(plugin, **flags))
        assert [message["type"] for message in sent] == [
            "http.response.start", "http.response.body",
        ]  # fmt: skip
        assert (scope["method"], scope["path"], scope["headers"]) == ("POST", OPEN, [])

    @pytest.mark.parametrize("flags", FLAGS)
    def test_what_is_no_request_passes(self, plugin: Any, flags: dict[str, Any]) -> None:
        """The start and the end of the server (scope type "lifespan") pass."""
        assert passed(new_gate(plugin, **flags), "lifespan")[1] is not None

    @pytest.mark.parametrize("flags", FLAGS)
    @pytest.mark.parametrize("path", [OPEN, "/v1/chat/completions", "/nothing/here"])
    def test_every_request_is_answered_once(
        self, plugin: Any, path: str, flags: dict[str, Any]
    ) -> None:
        """There is one whole answer: the application's, or an error of at least 400."""
        sent, scope = passed(new_gate(plugin, **flags), path=path)
        assert [message["type"] for message in sent].count("http.response.start") == 1
        assert not sent[-1].get("more_body")
        assert scope is not None or sent[0]["status"] >= 400

    def test_a_server_with_keys_is_closed(self, plugin: Any) -> None:
        """With --api-key, a request without a key does not reach a closed route; neither does a
        WebSocket."""
        gate = new_gate(plugin, **FLAGS[1])
        sent, scope = passed(gate, path="/v1/chat/completions")
        assert scope is None and sent[0]["status"] in (401, 403)
        sent, scope = passed(gate, "websocket", path="/v1/realtime")
        assert scope is None and sent[0]["type"] == "websocket.close"
        sent, scope = passed(gate, "websocket", path="/v1/realtime", extensions=CAN_ANSWER)
        assert scope is None
        assert sent[0]["type"] == "websocket.close" or sent[0]["status"] in (401, 403)

    def test_a_websocket_with_a_key_passes(self, plugin: Any) -> None:
        """With --api-key, a WebSocket whose headers hold a key reaches the application, which has
        not been answered for."""
        headers = [(b"authorization", b"Bearer sk-of-this-test")]
        gate = new_gate(plugin, **FLAGS[1])
        sent, scope = passed(gate, "websocket", path="/v1/realtime", headers=headers)
        assert not sent and scope["path"] == "/v1/realtime"

    def test_one_request_does_not_name_the_next(self, plugin: Any) -> None:
        """The owner of a request is not left behind in its task's surroundings."""
        gate = new_gate(plugin, **FLAGS[1])
        passed(gate, path="/v1/models", headers=[(b"authorization", b"Bearer sk-of-this-test")])
        caller = CALLER.get()
        assert caller is None or caller.owner == ""

    def test_keeps_owners_that_it_does_not_know(self, plugin: Any) -> None:
        """An owner that is the hash of a key is never said to be gone: the key decides."""
        assert new_gate(plugin).knows("0" * 64)
