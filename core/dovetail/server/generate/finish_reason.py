"""Why an answer ended, in the client's words. One pure function for every endpoint and mode."""

from __future__ import annotations

from typing import Literal

Dialect = Literal["completions", "chat", "responses", "messages"]


def finish_reason(
    cause: str,
    *,
    num_calls: int = 0,
    is_forced_call: bool = False,
    is_stop_text: bool = False,
    dialect: Dialect = "chat",
) -> str:
    """Return the word of a dialect for the engine's cause.

    | cause | calls | completions | chat | responses | messages |
    |---|---|---|---|---|---|
    | length | any | length | length | incomplete | max_tokens |
    | stop: the model's end | none | stop | stop | completed | end_turn |
    | stop: the client's stop text | none | stop | stop | completed | stop_sequence |
    | stop, whichever | some | stop | tool_calls | completed | tool_use |
    | stop, whichever | forced by name | stop | stop | completed | tool_use |

    Truncation is always told, calls or not. Aborts and errors never come here: they end a request
    without a reason.
    """
    if dialect == "responses":
        return "incomplete" if cause == "length" else "completed"
    if dialect == "messages":
        return _of_message(cause, num_calls, is_stop_text)
    calls = dialect == "chat" and num_calls and not is_forced_call
    return "tool_calls" if cause == "stop" and calls else cause


def _of_message(cause: str, num_calls: int, is_stop_text: bool) -> str:
    if cause == "length":
        return "max_tokens"
    if num_calls:
        return "tool_use"
    return "stop_sequence" if is_stop_text else "end_turn"
