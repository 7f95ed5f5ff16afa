"""Plugin files written for vLLM, read through the registry, and sessions over their parsers.

Needs the demo model's tokenizer, whose tags are single tokens.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import Any

from dovetail import registry
from dovetail.config.checkpoint.sources.model_path import DEMO_PATH
from dovetail.interfaces.answer_reader import AnswerQuery
from dovetail.interfaces.data.text import Tool
from dovetail.interfaces.tokenizer import Tokenizer
from dovetail.server.generate.events import Collected, CountedSession, SessionPlan
from dovetail.server.generate.tools.tool_choice import known_markers

PACKAGE = Path(__file__).resolve().parents[2] / "contrib" / "vllm-compat"
FILES = Path(__file__).resolve().parents[1] / "contrib" / "plugin_files"
TOOLS = (Tool(name="f", parameters={"type": "object"}),)
TOOL_BODIES = [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]


@cache
def demo_tokenizer() -> Tokenizer:
    """Return the demo model's tokenizer."""
    made: Tokenizer = registry.load("tokenizer", "hf")(None, str(DEMO_PATH))
    return made


def load_parser(kind: str, name: str, file: str | Path, **options: Any) -> Any:
    """Return a parser of a plugin file, bound to the demo model's tokenizer."""
    registry.admin.load_file(FILES / file)
    selection = registry.choose(kind, name, options=options)
    made = registry.admin.load_selection(selection)(registry.admin.build_options(selection))
    return made.bound(demo_tokenizer())


def query(tail: str = "", tools: Sequence[Tool] = TOOLS, **request: Any) -> AnswerQuery:
    """Return what is known of an answer before it begins."""
    body = {"messages": [], "tools": TOOL_BODIES if tools else None} | request
    return AnswerQuery(tools=tools, tail=tail, request=lambda: body)


def plan_of(
    tool: Any = None, reasoning: Any = None, asked: AnswerQuery | None = None, **fields: Any
) -> SessionPlan:
    """Return the plan of a request's sessions."""
    asked = asked or query()
    return SessionPlan(
        tool_parser=tool,
        tools=tuple(asked.tools),
        reasoning=known_markers(reasoning, asked.tail),
        tool_reading=tool.reads(asked) if tool else None,
        reasoning_reading=reasoning.reads(asked) if reasoning else None,
        **fields,
    )


def tokens_of(text: str) -> tuple[list[int], list[str]]:
    """Return a text's token ids and the text of each."""
    ids = demo_tokenizer().encode(text, add_special_tokens=False)
    stream = demo_tokenizer().stream((), skip_special_tokens=False)
    pieces = [stream.push(token_id) for token_id in ids]
    assert "".join(pieces) + stream.flush() == text
    return ids, pieces


def read(plan: SessionPlan, text: str, chance: random.Random | None = None, **end: Any) -> Any:
    """Return (reasoning, content, [(name, arguments)]) of an answer that comes in random pieces, or
    whole."""
    ids, pieces = tokens_of(text)
    session, answer, at = CountedSession(plan), Collected(), 0
    while at < len(ids):
        upto = len(ids) if chance is None else at + chance.randint(1, 5)
        taken = pieces[at:upto]
        answer.add(session.feed("".join(taken), ids[at:upto], [len(p) for p in taken]))
        at = upto
    answer.add(session.finish(**end))
    calls = [(call.name, call.arguments) for call in answer.calls]
    return answer.reasoning, answer.content, calls
