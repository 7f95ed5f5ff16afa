"""The text of a custom tool's call is in the tool's grammar, whatever syntax the model writes calls
in: random answers under every backend, read by the parser and judged by the library lark."""

from __future__ import annotations

import json
import random
from typing import Any

import numpy as np
import pytest

from dovetail import registry
from dovetail.interfaces.data.constraint import Constraint
from dovetail.interfaces.data.text import Tool
from dovetail.interfaces.structured_output import (
    LoadedConstraint,
    StructuredOutputBackend,
    Vocabulary,
)
from dovetail.interfaces.tool_parser import ToolParser
from dovetail.server.generate.body.chat import ChatRequest, ToolBody
from dovetail.server.generate.tools.tool_choice import tool_constraint
from dovetail.server.generate.tools.tool_formats import held_call
from dovetail_testing.contract import skipping_unavailable
from dovetail_testing.random_walks import allowed, follows, small_vocabulary
from dovetail_testing.text_splits import parse_in_pieces
from support.samples import sample_of

lark = pytest.importorskip("lark")
BACKENDS = ("guidance", "xgrammar", "lm-format-enforcer")
PATCH = """
start: begin_patch hunk+ end_patch
begin_patch: "*** Begin Patch" LF
end_patch: "*** End Patch" LF?

hunk: add_hunk | delete_hunk | update_hunk
add_hunk: "*** Add File: " filename LF add_line+
delete_hunk: "*** Delete File: " filename LF
update_hunk: "*** Update File: " filename LF change_move? change?

filename: /(.+)/
add_line: "+" /(.*)/ LF -> line

change_move: "*** Move to: " filename LF
change: (change_context | change_line)+ eof_line?
change_context: ("@@" | "@@ " /(.+)/) LF
change_line: ("+" | "-" | " ") /(.*)/ LF
eof_line: "*** End of File" LF

%import common.LF
"""
"""As Codex has it. Lark itself takes no expression that may be empty."""
NESTED = """
start: value
?value: "<" [value ("/" value)*] ">" | NAME | ESCAPED_STRING
NAME: /[a-z\\\\]{1,9}/
%import common.ESCAPED_STRING
%ignore " "
"""
GRAMMARS = {"patch": (PATCH, PATCH.replace("/(.*)/", "/(.+)/?")), "nested": (NESTED, NESTED)}
SYNTAXES = ("hermes", "qwen3_coder", "glm45", "pythonic", "gemma4", "minimax_m3", "mistral")
ENDS = ("\n", "\\n", "*", "E", "P", ">", '"', "}", "]", "<", "/")
"""What a walk prefers that is to end, the first that is allowed."""


def tool_of(grammar: str) -> ToolBody:
    form = {"type": "grammar", "syntax": "lark", "definition": grammar}
    return ToolBody.model_validate({"type": "custom", "custom": {"name": "note", "format": form}})


def parser_of(name: str) -> ToolParser:
    plugin = registry.load("tool_parser", name)
    parser: ToolParser = plugin(plugin.Options())
    return parser.for_forced_calls()


def constraint_of(parser: ToolParser, grammar: str) -> Constraint:
    call = held_call(parser, tool_of(grammar))
    assert call is not None
    return parser.calls_constraint(call, 1)


@pytest.fixture(scope="module")
def vocabulary() -> Vocabulary:
    return small_vocabulary()


def loaded(name: str, constraint: Constraint, vocabulary: Vocabulary) -> LoadedConstraint:
    with skipping_unavailable():
        plugin: type[StructuredOutputBackend] = registry.load("structured_output_backend", name)
    backend = plugin(plugin.Options(), vocabulary)
    return backend.load(backend.compile(constraint))


def walked(matcher: Any, vocabulary: Vocabulary, chance: random.Random) -> str | None:
    """Return the text of a random answer, None if it was not over after 1,200 tokens."""
    ends = [vocabulary.tokens.index(text.encode()) for text in ENDS]
    taken: list[bytes] = []
    wandering = chance.choice((0, 20, 60, 150))
    while len(taken) < 1200:
        may = allowed(matcher, vocabulary)
        assert may.any(), b"".join(taken)
        liked = [i for i in ends if may[i]] if chance.random() < 0.5 else []
        if may[1] and (len(taken) > wandering or may.sum() == 1):
            return b"".join(taken).decode()
        ids = np.flatnonzero(may & (np.arange(len(may)) != 1))
        is_over = len(taken) > wandering and chance.random() < 0.9
        token_id = int(ids[chance.randrange(len(ids))])
        if is_over or liked:
            token_id = next((i for i in (ends if is_over else liked) if may[i]), token_id)
        assert matcher.accept(token_id)
        taken.append(vocabulary.tokens[token_id])
    return None


def input_of(parser: ToolParser, text: str) -> str:
    """Return the text of the only call in an answer."""
    schema = {"type": "object", "properties": {"input": {"type": "string"}}}
    got = parse_in_pieces([text], tool_parser=parser, tools=(Tool(name="note", parameters=schema),))
    assert not got.content and len(got.calls) == 1, text
    found: str = json.loads(got.calls[0].arguments)["input"]
    return found


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("syntax", SYNTAXES)
@pytest.mark.parametrize("name", GRAMMARS)
def test_random_answers(name: str, syntax: str, backend: str, vocabulary: Vocabulary) -> None:
    grammar, as_judged = GRAMMARS[name]
    parser, judge = parser_of(syntax), lark.Lark(as_judged)
    constraint = loaded(backend, constraint_of(parser, grammar), vocabulary)
    num_whole = 0
    for seed in range(4 if backend == "lm-format-enforcer" else sample_of(12, 4)):
        text = walked(constraint.matcher(), vocabulary, random.Random(seed))
        if text is not None:
            num_whole += 1
            judge.parse(input_of(parser, text))
    assert num_whole >= 2


def classes() -> dict[type[ToolParser], str]:
    """Return a name of each tool parser that can constrain calls."""
    entries = {registry.load("tool_parser", e.id): e.name for e in registry.entries("tool_parser")}
    return {k: n for k, n in entries.items() if "constrains_calls" in k.capabilities}


@pytest.mark.sampled(every=3)
@pytest.mark.parametrize("syntax", sorted(classes().values()))
def test_every_syntax(syntax: str, vocabulary: Vocabulary) -> None:
    grammar = 'start: A "</" B~1..3 "\\n"?\nA: /[a-z"<\\/]{1,3}/\nB: /[^a-z]{1,2}/'
    parser, judge = parser_of(syntax), lark.Lark(grammar)
    constraint = loaded("guidance", constraint_of(parser, grammar), vocabulary)
    texts = [walked(constraint.matcher(), vocabulary, random.Random(seed)) for seed in range(6)]
    whole = [text for text in texts if text is not None]
    assert len(whole) >= 3
    for text in whole:
        judge.parse(input_of(parser, text))


LINES = (
    '*** Begin Patch\n*** Add File: a\\b.py\n+\t"x"\n+\n*** End Patch',
    "*** Begin Patch\n*** Update File: é\n*** Move to: ☃\n@@ f\n-a\n+b\n c\n*** End of File\n"
    "*** Delete File: </parameter\n*** End Patch\n",
)
FAULTY = (
    "*** Begin Patch\n*** End Patch",
    "*** Begin Patch\n*** Add File: a\n*** End Patch",
    "*** Begin Patch\n*** Add File: a\n+x\n*** End Patch\n\n",
    "*** Begin Patch\n*** Delete File: \n*** End Patch",
    "*** Begin Patch\n*** Update File: a\nx\n*** End Patch",
    "*** begin Patch\n*** Delete File: a\n*** End Patch",
    "",
)  # fmt: skip


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("syntax", ["hermes", "qwen3_coder"])
def test_near_misses(syntax: str, backend: str, vocabulary: Vocabulary) -> None:
    constraint = loaded(backend, constraint_of(parser_of(syntax), PATCH), vocabulary)
    judge = lark.Lark(GRAMMARS["patch"][1])
    head, tail = (
        "<tool_call>\n<function=note>\n<parameter=input>\n",
        ("\n</parameter>\n</function>\n</tool_call>"),
    )
    if syntax == "hermes":
        head, tail = '<tool_call>\n{"name": "note", "arguments": {"input": "', '"}}\n</tool_call>'
    for text in (*LINES, *FAULTY):
        is_right = text in LINES
        assert is_right == _is_in(judge, text)
        inside = json.dumps(text, ensure_ascii=False)[1:-1] if syntax == "hermes" else text
        whole = (head + inside + tail).encode()
        assert follows(constraint.matcher(), vocabulary, whole) == is_right, text
    if syntax == "hermes":
        raw = (head + LINES[0].replace('"', "") + tail).encode()
        assert not follows(constraint.matcher(), vocabulary, raw)


def _is_in(judge: Any, text: str) -> bool:
    try:
        judge.parse(text)
    except lark.exceptions.LarkError:
        return False
    return True


@pytest.mark.parametrize("syntax", ["qwen3_coder", "hermes"])
def test_other_tools_stay_free(syntax: str, vocabulary: Vocabulary) -> None:
    """Under "auto" a function that is not strict may be called with any arguments."""
    other = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}
    given = {"messages": [{"role": "user", "content": "x"}], "tools": [other]}
    body = ChatRequest.model_validate(given)
    body = body.model_copy(update={"tools": [*(body.tools or ()), tool_of(PATCH)]})
    asked = tool_constraint(body, parser_of(syntax))
    assert asked is not None
    ((trigger, rest),) = asked.tags
    assert trigger == "<tool_call>"
    constraint = loaded("guidance", rest, vocabulary)
    call = '\n{"name": "read", "arguments": {"filePath": "a", "N": [1]}}\n</tool_call>'
    if syntax == "qwen3_coder":
        call = "\n<function=read>\n<parameter=filePath>\na\n</parameter>\n</function>\n</tool_call>"
    assert follows(constraint.matcher(), vocabulary, call.encode())
    wrong = call.replace("read", "note").replace("filePath", "input")
    assert not follows(constraint.matcher(), vocabulary, wrong.encode())
