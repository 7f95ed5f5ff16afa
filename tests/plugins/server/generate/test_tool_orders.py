"""A constraint by tools is the same in whatever order a client sends them."""

from __future__ import annotations

import itertools
from typing import Any

import pytest

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.interfaces.data.constraint import encode_constraint
from dovetail.server.generate.body.chat import ChatRequest
from dovetail.server.generate.tools.parsers import Parsers
from dovetail.server.generate.tools.tool_choice import answer_constraint, session_plan
from dovetail_plugins.tool_parsers.hermes import Hermes

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "strict": is_strict,
            "parameters": {"type": "object", "properties": {name: {"type": "string"}}},
        },
    }
    for name, is_strict in (("read", True), ("write", False), ("apply", True))
]
OBJECT = {"type": "json_object"}


@pytest.mark.parametrize(
    "fields",
    [
        {"tool_choice": "required"},
        {"tool_choice": "auto"},
        {"tool_choice": "auto", "response_format": OBJECT},
    ],
    ids=["required", "strict", "strict-or-json"],
)
def test_the_order_of_tools_does_not_change_their_constraint(fields: dict[str, Any]) -> None:
    found = set()
    for order in itertools.permutations(TOOLS):
        messages = [{"role": "user", "content": "hi"}]
        body = ChatRequest.model_validate({"messages": messages, "tools": list(order)} | fields)
        plan = session_plan(body, Parsers(tool=Hermes(None)), FrontendConfig(), "")
        request = answer_constraint(body, plan, None)
        assert request is not None
        parts = [request.constraint] if request.constraint else [one for _, one in request.tags]
        found.add(tuple(map(encode_constraint, parts)))
    assert len(found) == 1
