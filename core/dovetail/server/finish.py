"""Why an answer ended, in the client's words. One pure function for every endpoint and mode."""

from __future__ import annotations


def finish_reason(cause: str, *, num_calls: int = 0, is_forced_call: bool = False) -> str:
    """Return OpenAI's finish_reason for the engine's cause.

    Truncation is always "length", calls or not. A call that the request itself forced by name
    ends with "stop", as OpenAI's does.
    """
    if cause == "stop" and num_calls and not is_forced_call:
        return "tool_calls"
    return cause
