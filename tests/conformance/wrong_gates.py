"""Gates for the conformance kit: a right one, and others that each break one clause."""

from __future__ import annotations

from typing import Any

from dovetail.interfaces.gate import Gate, GateFacts
from dovetail.interfaces.plugin import Info


class RightGate(Gate):
    """One key in one header."""

    info = Info(summary="one header has the key")

    def __init__(self, options: Any, facts: GateFacts) -> None:
        self.facts = facts
        self.keys = [f"Bearer {key}".encode() for key in facts.frontend.api_key]

    async def enter(self, app: Any, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan" or self.may_enter(scope):
            await app(scope, receive, send)
        elif scope["type"] == "websocket":
            await send({"type": "websocket.close", "code": 1008})
        else:
            await send({"type": "http.response.start", "status": 401, "headers": []})
            await send({"type": "http.response.body", "body": b"{}"})

    def may_enter(self, scope: Any) -> bool:
        key = dict(scope["headers"]).get(b"authorization")
        return not self.keys or key in self.keys or self.facts.is_open(scope)


class ShutGate(RightGate):
    def may_enter(self, scope: Any) -> bool:
        return not self.keys or dict(scope["headers"]).get(b"authorization") in self.keys


class SleepyGate(RightGate):
    async def enter(self, app: Any, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] != "lifespan":
            await super().enter(app, scope, receive, send)


class MuteGate(RightGate):
    async def enter(self, app: Any, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan" or self.may_enter(scope):
            await super().enter(app, scope, receive, send)


class AjarGate(RightGate):
    def may_enter(self, scope: Any) -> bool:
        return True


class ForgetfulGate(RightGate):
    def knows(self, owner: str) -> bool:
        return False
