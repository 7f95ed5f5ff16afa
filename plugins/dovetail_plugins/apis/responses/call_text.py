"""The names of a call's text in items and events: arguments, or a custom tool's input."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CallText:
    """The names of a call's item, its text field, and its events."""

    item: str
    field: str
    delta: str
    done: str


ARGUMENTS = CallText(
    item="function_call",
    field="arguments",
    delta="response.function_call_arguments.delta",
    done="response.function_call_arguments.done",
)
INPUT = CallText(
    item="custom_tool_call",
    field="input",
    delta="response.custom_tool_call_input.delta",
    done="response.custom_tool_call_input.done",
)
