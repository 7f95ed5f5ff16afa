"""Conversations of DeepSeek-V4 and V4.1, whose checkpoints have code for them and no chat template.

Source: the formats that encoding/encoding_dsv4.py of V4 and encoding/encoding.py of V4.1 define.
There is no role of tools: their results are a user's text, in the order of the calls, and what
users write next to them or to each other is one turn. Thoughts before the last turn of a user are
left out, unless the conversation has tools. What the checkpoints call a developer is a searcher of
their own; here a developer's message is a system message, as in OpenAI's API.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar

from dovetail.errors import RequestError
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.renderer import Reads, RendererFacts, RendererInput
from dovetail_plugins.renderers import _dsml
from dovetail_plugins.renderers._by_code import (
    EFFORT,
    SWITCHES,
    CodeRenderer,
    code_text,
    level_of,
    no_role,
    thinks,
)
from dovetail_plugins.renderers._dsml import (
    ASSISTANT,
    BEGIN,
    DSML,
    END,
    THINK,
    THINK_END,
    USER,
)

SYSTEM, REMINDER = "<｜System｜>", "<｜latest_reminder｜>"
REMINDS = "latest_reminder"
"""The role of a note, of the date for example, before the message that it belongs to."""

TASKS = {
    name: f"<｜{name}｜>"
    for name in ("action", "query", "authority", "domain", "title", "read_url")
}
"""What opens a short answer of another kind: a message's `task`, and its token."""

WORDS = frozenset({*_dsml.WORDS, SYSTEM, REMINDER, *TASKS.values()})
READS = Reads(
    roles=frozenset({REMINDS}),
    fields=frozenset({"task", "response_format"}),
    variables=frozenset({*SWITCHES, EFFORT}),
    writes=WORDS,
    structure=WORDS,
)

TOOLS = """## Tools

You have access to a set of tools to help answer the user's question. You can invoke tools by \
writing a "<{tag}{section}>" block like the following:

<{tag}{section}>
<{tag}invoke name="$TOOL_NAME">
<{tag}parameter name="$PARAMETER_NAME" string="true|false">$PARAMETER_VALUE</{tag}parameter>
...
</{tag}invoke>
<{tag}invoke name="$TOOL_NAME2">
...
</{tag}invoke>
</{tag}{section}>

String parameters should be specified as is and set `string="true"`. For all other types (numbers, \
booleans, arrays, objects), pass the value in JSON format and set `string="false"`.

If thinking_mode is enabled (triggered by {think}), you MUST output your complete reasoning inside \
{think}...{think_end} BEFORE any tool calls or final response.

Otherwise, output directly after {think_end} with tool calls or final response.

### Available Tool Schemas

{schemas}

You MUST strictly follow the above defined tool name and parameter schemas to invoke tool calls.
"""
"""What the models were trained to read about their tools, word for word. The texts below, too."""

RESPONSE = "## Response Format:\n\nYou MUST strictly adhere to the following schema to reply:\n"
THOROUGH = (
    "Reasoning Effort: Absolute maximum with no shortcuts permitted.\n"
    "You MUST be very thorough in your thinking and comprehensively decompose the problem to "
    "resolve the root cause, rigorously stress-testing your logic against all potential paths, "
    "edge cases, and adversarial scenarios.\n"
    "Explicitly write out your entire deliberation process, documenting every intermediate step, "
    "considered alternative, and rejected hypothesis to ensure absolutely no assumption is left "
    "unchecked.\n\n"
)
BEYOND = "Reasoning Effort: Beyond maximum"
MOST_THOROUGH = (
    f"{BEYOND} — exhaustive, relentless, and uncompromising.\n"
    "You MUST reason with the utmost depth and rigor, leaving absolutely nothing to chance: "
    "exhaustively decompose the problem into its most fundamental components, trace every causal "
    "chain to its root, and resolve the underlying cause rather than any surface symptom.\n"
    "Do not stop reasoning until you have independently verified the solution from multiple angles "
    "and are certain that no assumption remains unchecked and no error remains undiscovered.\n\n"
)
EFFORTS = {"low": "", "high": THOROUGH, "max": MOST_THOROUGH}
PREVIEW_EFFORTS = {"low": "", "high": "", "max": THOROUGH}
"""For the releases before 2026-07-31, whose code does not have the longest text."""

BUDGET = (
    "Reasoning Effort: {budget} (range 1-100, the higher the value, the more thorough the "
    "reasoning)\n\n"
)
BUDGETS = {"low": 50, "high": 75, "max": 100}
MAX_BUDGET = 100


@dataclass(frozen=True, slots=True, kw_only=True)
class Dialect:
    """How a version writes: what begins the names of its tags, the section around its calls, and
    the token before a system message. With such a token, a later system message asks for an answer,
    too."""

    tag: str
    section: str
    system: str = ""

    def tools(self, tools: Sequence[dict[str, Any]]) -> str:
        """Return the text about the tools."""
        return TOOLS.format(
            tag=self.tag,
            section=self.section,
            think=THINK,
            think_end=THINK_END,
            schemas=_dsml.schemas(tools),
        )


class DeepseekV4(CodeRenderer):
    """Renders as the checkpoint's own code does."""

    info = Info(
        summary="conversations of DeepSeek-V4, which has no chat template",
        source="https://huggingface.co/deepseek-ai/DeepSeek-V4-Pro",
    )
    model_types: ClassVar[tuple[str, ...]] = ("deepseek_v4",)
    code: ClassVar[tuple[str, ...]] = ("encoding/encoding_dsv4.py", "encoding_dsv4.py")
    dialect: ClassVar[Dialect] = Dialect(tag=DSML, section="tool_calls")

    def __init__(self, options: Any, facts: RendererFacts) -> None:
        super().__init__(options, facts)
        code = code_text(facts, self.code)
        self._efforts = PREVIEW_EFFORTS if code and BEYOND not in code else EFFORTS

    def reads(self, *, has_tools: bool) -> Reads:
        """Return what the format has a place for."""
        return READS

    def effort(self, given: Any) -> str:
        """Return the text of an effort, None being none given. Raises: RequestError"""
        return "" if given is None else level_of(given, self._efforts)

    def render(self, given: RendererInput) -> str:
        """Return the prompt. Raises: RequestError for an unknown effort or task"""
        is_thinking = thinks(given.variables)
        turns = list(given.messages)
        if given.tools:
            turns = _dsml.with_tools(turns, self.dialect.tools(given.tools))
        effort = self.effort(given.variables.get(EFFORT)) if is_thinking else ""
        begins = self.dialect.system if effort or turns[0]["role"] == "system" else ""
        writer = _Writer(turns, self.dialect, thinks=is_thinking, has_tools=bool(given.tools))
        return BEGIN + begins + effort + writer.text(is_open=given.adds_generation_prompt)


class DeepseekV41(DeepseekV4):
    """Renders as the checkpoint's own code does: V4's format with other tags, a token before system
    messages and a number for the effort."""

    info = Info(
        summary="conversations of DeepSeek-V4.1, which has no chat template",
        source="https://huggingface.co/deepseek-ai/DeepSeek-V4.1-Flash",
    )
    model_types: ClassVar[tuple[str, ...]] = ("deepseek_v41", "deepseek_v41_text")
    code: ClassVar[tuple[str, ...]] = ()
    dialect: ClassVar[Dialect] = Dialect(tag=f"{DSML} ", section="calls", system=SYSTEM)

    def effort(self, given: Any) -> str:
        """Return the text of an effort: a name, or a number from 1 to 100. Raises: RequestError"""
        if isinstance(given, str) and given.isdecimal() and len(given) <= len(str(MAX_BUDGET)):
            given = int(given)
        if isinstance(given, int) and not isinstance(given, bool):
            if not 1 <= given <= MAX_BUDGET:
                raise RequestError(
                    f"{given} is not an effort of this model.",
                    where=EFFORT,
                    fix=f"use a number from 1 to {MAX_BUDGET}.",
                    code="renderer_error",
                )
            return BUDGET.format(budget=given)
        return BUDGET.format(budget=level_of("high" if given is None else given, BUDGETS))


class _Writer:
    """Writes one conversation."""

    def __init__(
        self,
        messages: Sequence[dict[str, Any]],
        dialect: Dialect,
        *,
        thinks: bool,
        has_tools: bool,
    ) -> None:
        self._turns = _turns(messages)
        self._dialect = dialect
        self._thinks = thinks
        questions = (at for at in range(len(self._turns)) if self._asks(at))
        self._first_thoughts = 0 if has_tools else max(questions, default=0)

    def text(self, *, is_open: bool) -> str:
        """Return the turns; the last one ends with the opening of an answer if `is_open`. Raises:
        RequestError"""
        last = len(self._turns) - 1
        return "".join(
            self._turn(at) + (self._opening(at) if self._is_before_answer(at, is_open) else "")
            for at in range(last + 1)
        )

    def _is_before_answer(self, at: int, is_open: bool) -> bool:
        if at + 1 == len(self._turns):
            return is_open
        return self._turns[at + 1]["role"] in ("assistant", REMINDS)

    def _asks(self, at: int) -> bool:
        role = self._turns[at]["role"]
        return role == "user" or bool(role == "system" and at > 0 and self._dialect.system)

    def _turn(self, at: int) -> str:
        turn = self._turns[at]
        match turn["role"]:
            case "user":
                return USER + "\n\n".join(map(_part, _in_order(turn["parts"], turn["calls"])))
            case "assistant":
                return self._answer(at)
            case "system":
                return (self._dialect.system if at > 0 else "") + _system(turn)
            case role if role == REMINDS:
                return f"{REMINDER}{turn['content']}"
            case role:
                raise no_role(role, at)

    def _opening(self, at: int) -> str:
        """Return what follows a turn before an answer. Raises: RequestError"""
        task = self._turns[at].get("task")
        if task is not None and task != "action":
            return _token(task)
        if task is None and not self._asks(at):
            return ""
        is_thinking = self._thinks and (task is not None or at >= self._first_thoughts)
        word = THINK if is_thinking else THINK_END
        return f"{ASSISTANT}{word}{'' if task is None else _token(task)}"

    def _answer(self, at: int) -> str:
        turn = self._turns[at]
        is_of_task = at > 0 and self._turns[at - 1].get("task") is not None
        has_thoughts = self._thinks and not is_of_task and at >= self._first_thoughts
        thoughts = f"{turn.get('reasoning_content', '')}{THINK_END}" if has_thoughts else ""
        dialect = self._dialect
        calls = _dsml.section(turn.get("tool_calls", ()), dialect.section, dialect.tag)
        return f"{thoughts}{turn['content']}{calls}{END}"


def _turns(messages: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the messages, users' and tools' that follow each other as one turn with `parts`.

    It has the last task among them. The checkpoints' code has none then, unless the first has it.
    """
    turns: list[dict[str, Any]] = []
    calls: Sequence[Mapping[str, Any]] = ()
    for message in messages:
        role, last = message["role"], turns[-1] if turns else {}
        if role not in ("user", "tool"):
            calls = message.get("tool_calls") or calls
            turns.append(message)
        elif "parts" in last and (role == "tool" or "task" not in last):
            last["parts"].append(message)
            if "task" in message:
                last["task"] = message["task"]
        else:
            turns.append(message | {"role": "user", "parts": [message], "calls": calls})
    return turns


def _in_order(
    parts: Sequence[dict[str, Any]], calls: Sequence[Mapping[str, Any]]
) -> list[dict[str, Any]]:
    """Return a turn's parts, the results among them in the order of the calls."""
    places = {call.get("id"): at for at, call in enumerate(calls)}
    results = [part for part in parts if part["role"] == "tool"]
    results.sort(key=lambda part: places.get(part.get("tool_call_id"), 0))
    ordered = iter(results)
    return [next(ordered) if part["role"] == "tool" else part for part in parts]


def _part(part: Mapping[str, Any]) -> str:
    text = str(part["content"])
    return f"<tool_result>{text}</tool_result>" if part["role"] == "tool" else text


def _system(turn: Mapping[str, Any]) -> str:
    schema = turn.get("response_format")
    return f"{turn['content']}" + (f"\n\n{RESPONSE}{_dsml.to_json(schema)}" if schema else "")


def _token(task: Any) -> str:
    token = TASKS.get(task) if isinstance(task, str) else None
    if token is None:
        raise RequestError(
            f"{task!r} is not a task of this model.",
            where="messages.task",
            fix=f"use one of {', '.join(TASKS)}.",
            code="renderer_error",
        )
    return token
