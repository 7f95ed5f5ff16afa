"""Conversations of DeepSeek-V3.2, whose checkpoint has code for them and no chat template.

Source: the format that the checkpoint's encoding/encoding_dsv32.py defines. Tools stand in the
first system message, calls and results in DSML tags. Of earlier thoughts, only those after the last
user message stay. With thinking off, every turn of the model opens after "</think>".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from dovetail.errors import RequestError
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.renderer import Reads, RendererInput
from dovetail_plugins.renderers import _dsml
from dovetail_plugins.renderers._by_code import SWITCHES, CodeRenderer, thinks
from dovetail_plugins.renderers._dsml import (
    ASSISTANT,
    BEGIN,
    DSML,
    END,
    THINK,
    THINK_END,
    USER,
)

CODE = "encoding/encoding_dsv32.py"
CALLS, CALLS_END = f"<{DSML}function_calls>", f"</{DSML}function_calls>"
RESULTS, RESULTS_END = "<function_results>", "</function_results>"

READS = Reads(variables=frozenset(SWITCHES), writes=_dsml.WORDS, structure=_dsml.WORDS)

TOOLS = f"""## Tools

You have access to a set of tools you can use to answer the user's question.
You can invoke functions by writing a "{CALLS}" block like the following as part of your reply to \
the user:
{CALLS}
<{DSML}invoke name="$FUNCTION_NAME">
<{DSML}parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{DSML}parameter>
...
</{DSML}invoke>
<{DSML}invoke name="$FUNCTION_NAME2">
...
</{DSML}invoke>
{CALLS_END}

String and scalar parameters should be specified as is without any escaping or quotes, while lists \
and objects should use JSON format. The "string" attribute should be set to "true" for string type \
parameters and "false" for other types (numbers, booleans, arrays, objects).

If the thinking_mode is enabled, then after function results you should strongly consider \
outputting a thinking block. Here is an example:

{CALLS}
...
{CALLS_END}

{RESULTS}
...
{RESULTS_END}

{THINK}...thinking about results{THINK_END}

Here are the functions available in JSONSchema format:
<functions>
"""
"""What the model was trained to read before its tools, word for word."""


class DeepseekV32(CodeRenderer):
    """Renders as the checkpoint's own code does."""

    info = Info(
        summary="conversations of DeepSeek-V3.2, which has no chat template",
        source="https://huggingface.co/deepseek-ai/DeepSeek-V3.2",
    )
    model_types: ClassVar[tuple[str, ...]] = ("deepseek_v32",)
    code: ClassVar[tuple[str, ...]] = (CODE,)

    def reads(self, *, has_tools: bool) -> Reads:
        """Return what the format has a place for."""
        return READS

    def render(self, given: RendererInput) -> str:
        """Return the prompt. Raises: RequestError for results without calls"""
        turns = list(given.messages)
        if given.tools:
            text = f"{TOOLS}{_dsml.schemas(given.tools)}\n</functions>\n"
            turns = _dsml.with_tools(turns, text)
        writer = _Writer(turns, thinks=thinks(given.variables))
        written = [writer.turn(at) for at in range(len(turns))]
        if given.adds_generation_prompt:
            written.append(writer.opening(len(turns)))
        return BEGIN + "".join(written)


class _Writer:
    """Writes the turns of one conversation."""

    def __init__(self, turns: Sequence[dict[str, Any]], *, thinks: bool) -> None:
        self._turns = turns
        self._thinks = thinks
        users = (at for at, turn in enumerate(turns) if turn["role"] == "user")
        self._last_user = max(users, default=-1)
        self._called = _called(turns)

    def turn(self, at: int) -> str:
        """Return a turn, with what opens the model's after it if another turn follows. Raises:
        RequestError"""
        turn = self._turns[at]
        match turn["role"]:
            case "system":
                text = str(turn["content"])
            case "user":
                text = f"{USER}{turn['content']}"
            case "tool":
                text = self._result(at)
            case _:
                text = self._answer(at)
        return text + (self.opening(at + 1) if at + 1 < len(self._turns) else "")

    def opening(self, at: int) -> str:
        """Return what opens the model's turn before the turn `at`; empty where it cannot speak."""
        word = THINK if self._thinks and at > self._last_user else THINK_END
        if self._turns[at - 1]["role"] == "user":
            return f"{ASSISTANT}{word}"
        ends_results = self._is_result(at - 1) and not self._is_result(at)
        return f"\n\n{word}" if ends_results else ""

    def _is_result(self, at: int) -> bool:
        return at < len(self._turns) and self._turns[at]["role"] == "tool"

    def _result(self, at: int) -> str:
        if not self._called[at]:
            raise RequestError(
                "a tool's result needs a call before it.",
                where=f"messages[{at}]",
                fix="send the assistant's message with its tool_calls, too.",
                code="renderer_error",
            )
        start = "" if self._is_result(at - 1) else f"\n\n{RESULTS}"
        end = "" if self._is_result(at + 1) else f"\n{RESULTS_END}"
        return f"{start}\n<result>{self._turns[at]['content']}</result>{end}"

    def _answer(self, at: int) -> str:
        turn = self._turns[at]
        is_current = self._thinks and at > self._last_user
        thoughts = f"{turn.get('reasoning_content', '')}{THINK_END}" if is_current else ""
        calls = _dsml.section(turn.get("tool_calls", ()), "function_calls")
        return f"{thoughts}{turn['content']}{calls}{END}"


def _called(turns: Sequence[dict[str, Any]]) -> list[bool]:
    """Return for each turn whether calls come before the results that it ends or belongs to."""
    found: list[bool] = []
    for turn in turns:
        is_result = turn["role"] == "tool"
        found.append(bool(found and found[-1]) if is_result else bool(turn.get("tool_calls")))
    return found
