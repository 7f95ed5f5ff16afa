"""Tool parsers of plugin files written for vLLM: streamed as whole, completed, or failing."""

from __future__ import annotations

import json
import logging
import random
from typing import Any

import pytest

from dovetail.errors import ConfigError, RequestError
from dovetail.server.generate.events import Collected, CountedSession, ToolCallArgsDelta
from support.vllm_files import TOOLS, load_parser, plan_of, query, read, tokens_of

NUM_CUTS = 40
LONG = json.dumps({"text": "some words, " * 60 + 'and "quotes" \\ ☃'}, ensure_ascii=False)


def call(name: str, arguments: str) -> str:
    return f'<tool_call>{{"name": "{name}", "arguments": {arguments}}}</tool_call>'


ANSWERS: list[tuple[str, str, list[tuple[str, str]]]] = [
    ("", "", []),
    ("Just words, and a < b.", "Just words, and a < b.", []),
    (call("f", '{"a": 1}'), "", [("f", '{"a": 1}')]),
    (f"Sure. {call('f', LONG)}", "Sure. ", [("f", LONG)]),
    (call("now", "{}"), "", [("now", "{}")]),
    (
        "Both:" + call("f", '{"a": [1, {"b": null}]}') + "\n" + call("g", '{"c": "d}"}'),
        "Both:",
        [("f", '{"a": [1, {"b": null}]}'), ("g", '{"c": "d}"}')],
    ),
    ("Hm <tool_call>not json</tool_call>.", "Hm <tool_call>not json</tool_call>.", []),
]


@pytest.mark.parametrize(("text", "content", "calls"), ANSWERS)
@pytest.mark.parametrize("streams", [True, False])
def test_streamed_is_whole_at_random_cuts(
    text: str, content: str, calls: list[tuple[str, str]], streams: bool
) -> None:
    parser = load_parser("tool_parser", "state_machine", "state_machine.py", streams=streams)
    plan = plan_of(parser)
    assert read(plan, text) == ("", content, calls)
    chance = random.Random(7)
    for _ in range(NUM_CUTS):
        assert read(plan, text, chance) == ("", content, calls)


def test_long_arguments_are_told_while_they_come() -> None:
    plan = plan_of(load_parser("tool_parser", "state_machine", "state_machine.py"))
    ids, pieces = tokens_of(call("f", LONG))
    session, told_early = CountedSession(plan), ""
    for token_id, piece in zip(ids[:-20], pieces, strict=False):
        events = session.feed(piece, (token_id,), (len(piece),))
        told_early += "".join(e.text for e in events if isinstance(e, ToolCallArgsDelta))
    assert len(told_early) > 300
    assert LONG.startswith(told_early)


def test_a_cut_answer_keeps_its_open_call() -> None:
    plan = plan_of(load_parser("tool_parser", "state_machine", "state_machine.py"))
    text = '<tool_call>{"name": "f", "arguments": {"city": "Par'
    assert read(plan, text, is_cut=True) == ("", "", [("f", '{"city": "Par')])


def test_whole_answers_alone() -> None:
    plan = plan_of(load_parser("tool_parser", "regex-calls", "regex_calls.py"))
    text = 'I look. <function=f>{"a": 1}</function><function=g.h>{}</function>'
    wanted = ("", "I look.", [("f", '{"a": 1}'), ("g.h", "{}")])
    assert read(plan, text) == wanted
    assert read(plan, text, random.Random(1)) == wanted
    session, answer = CountedSession(plan), Collected()
    ids, pieces = tokens_of(text)
    answer.add(session.feed(text, ids, [len(piece) for piece in pieces]))
    answer.add(session.finish())
    assert all(call.call_id.startswith("mine-") for call in answer.calls)


def test_no_more_calls_than_asked_for() -> None:
    parser = load_parser("tool_parser", "state_machine", "state_machine.py")
    text = call("f", '{"a": 1}') + call("f", '{"a": 2}')
    assert read(plan_of(parser, max_calls=1), text)[2] == [("f", '{"a": 1}')]


def test_stop_strings_count_in_content_alone() -> None:
    parser = load_parser("tool_parser", "state_machine", "state_machine.py")
    plan = plan_of(parser, stops=("STOP",))
    text = call("f", '{"a": "STOP"}')
    assert read(plan, text)[2] == [("f", '{"a": "STOP"}')]
    assert read(plan, "so far STOP and on", random.Random(2)) == ("", "so far ", [])


def test_adjust_request_shows_special_tokens(caplog: pytest.LogCaptureFixture) -> None:
    parser = load_parser("tool_parser", "state_machine", "state_machine.py")
    assert parser.reads(query()).shows_special_tokens
    assert not parser.reads(query(tools=())).shows_special_tokens
    assert not load_parser("tool_parser", "quiet", "failing.py").reads(query()).shows_special_tokens
    assert caplog.records == []


@pytest.mark.parametrize("cut", [None, 3])
@pytest.mark.parametrize(
    ("name", "text", "wanted"),
    [
        # What one method leaves open, the other completes.
        ("quiet", 'a b [call]{"x": 1}', ("a b ", [("f", '{"x": 1}')])),
        ("raises_streaming", 'a b [call]{"x": 1}', ("a b ", [("f", '{"x": 1}')])),
        ("returns_text", 'a b [call]{"x": 1}', ("a b ", [("f", '{"x": 1}')])),
        ("raises_streaming", "a b [no call", ("a b [no call", [])),
        ("quiet", "a b [no call", ("a b [no call", [])),
        # Nobody knows: it is content.
        ("raises_always", 'a b [call]{"x": 1}', ('a b [call]{"x": 1}', [])),
        ("raises_whole", "a [call] b", ("a [call] b", [])),
        # Arguments that are not JSON are content.
        ("quiet", "a b [call]{not json", ("a b [call]{not json", [])),
        ("quiet", "a b [call]", ("a b ", [("f", "{}")])),
    ],
)
def test_a_parser_that_fails_costs_no_text(
    name: str, text: str, wanted: Any, cut: int | None, caplog: pytest.LogCaptureFixture
) -> None:
    plan = plan_of(load_parser("tool_parser", name, "failing.py"))
    chance = None if cut is None else random.Random(cut)
    assert read(plan, text, chance) == ("", *wanted)
    said = [r.getMessage() for r in caplog.records if r.levelno >= logging.WARNING]
    is_faulty = name != "quiet" and not (name == "raises_streaming" and "[" not in text)
    assert bool(said) == is_faulty, said


def test_a_fault_is_logged_with_its_stack_once(caplog: pytest.LogCaptureFixture) -> None:
    plan = plan_of(load_parser("tool_parser", "raises_streaming", "failing.py"))
    for _ in range(3):
        read(plan, "a [b")
    lines = [r for r in caplog.records if "raised KeyError" in r.getMessage()]
    assert [r.exc_info is not None for r in lines] == [True, False, False]
    assert lines[0].getMessage().startswith("tool parser RaisesStreaming: ")


def test_a_parser_that_the_tokenizer_does_not_fit() -> None:
    with pytest.raises(ConfigError, match="could not locate") as error:
        load_parser("tool_parser", "needs_a_token", "failing.py")
    assert error.value.where == "tool parser NeedsAToken"


def test_a_parser_that_refuses_a_request() -> None:
    parser = load_parser("tool_parser", "refuses_tools", "failing.py")
    with pytest.raises(RequestError, match="no more than none"):
        parser.reads(query())


def test_forced_calls_are_a_json_list() -> None:
    parser = load_parser("tool_parser", "quiet", "failing.py").for_forced_calls()
    calls = parser.parse('[{"name": "f", "parameters": {"a": 1}}]', TOOLS)
    assert [(c.name, c.arguments) for c in calls] == [("f", '{"a": 1}')]
    assert parser.constraint(TOOLS[0]) is not None


PARTS = (
    "<tool_call>", "</tool_call>", "<think>", "</think>", '{"name": "f", "arguments": ', "{}", "}",
    '{"a": "b', '"}', " words", "\n\n", "<", "<function=f>", "</function>", "[call]", "☃", "[",
)  # fmt: skip


@pytest.mark.parametrize(
    ("name", "file"),
    [
        ("state_machine", "state_machine.py"),
        ("regex_calls", "regex_calls.py"),
        ("quiet", "failing.py"),
        ("raises_streaming", "failing.py"),
    ],
)
def test_any_text_reads_alike_however_it_is_cut(name: str, file: str) -> None:
    chance = random.Random(name)
    parser = load_parser("tool_parser", name, file)
    thoughts = load_parser("reasoning_parser", "thoughts", "thoughts.py")
    for plan in (plan_of(parser), plan_of(parser, thoughts)):
        for _ in range(150):
            text = "".join(chance.choices(PARTS, k=chance.randint(1, 9)))
            is_cut = chance.random() < 0.3
            whole = read(plan, text, is_cut=is_cut)
            assert read(plan, text, chance, is_cut=is_cut) == whole, text
            for _, arguments in whole[2]:
                assert is_cut or isinstance(json.loads(arguments), dict), text
