"""Reasoning parsers of plugin files written for vLLM, alone and before either kind of calls."""

from __future__ import annotations

import random
from typing import Any

import pytest

from dovetail.interfaces.data.text import Markers
from dovetail.server.generate.events import CountedSession
from support.serving import NameAndJson, Thinks
from support.vllm_files import load_parser, plan_of, query, read, tokens_of

NUM_CUTS = 40
CALL = '<tool_call>{"name": "f", "arguments": {"a": 1}}</tool_call>'
CALLS = [("f", '{"a": 1}')]


def thoughts(name: str = "thoughts") -> Any:
    return load_parser("reasoning_parser", name, f"{name}.py")


def check(plan: Any, text: str, wanted: Any, **end: Any) -> None:
    assert read(plan, text, **end) == wanted
    chance = random.Random(11)
    for _ in range(NUM_CUTS):
        assert read(plan, text, chance, **end) == wanted


@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("", "", ""),
        ("plain words", "", "plain words"),
        ("<think>why not</think>because", "why not", "because"),
        ("<think>why</think>\n\nbe <b> cause", "why", "\n\nbe <b> cause"),
        ("<think></think>now", "", "now"),
    ],
)
def test_streamed_is_whole_at_random_cuts(text: str, reasoning: str, content: str) -> None:
    check(plan_of(reasoning=thoughts(), asked=query(tools=())), text, (reasoning, content, []))


def test_thinking_that_is_cut_stays_reasoning() -> None:
    """Its two methods disagree on that; what was streamed stands, streamed or not."""
    plan = plan_of(reasoning=thoughts(), asked=query(tools=()))
    check(plan, "<think>so far", ("so far", "", []), is_cut=True)


def test_the_markers_are_known_from_the_object() -> None:
    assert thoughts().markers == Markers(start="<think>", end="</think>")
    assert thoughts("derived_thoughts").markers == Markers(start="<think>", end="</think>")


def test_a_class_derived_from_one_of_vllms() -> None:
    parser = thoughts("derived_thoughts")
    plan = plan_of(reasoning=parser, asked=query(tools=()))
    check(plan, "it begins inside</think>done", ("it begins inside", "done", []))
    check(plan, "<think>twice</think>done", ("twice", "done", []))
    off = query(tools=(), chat_template_kwargs={"enable_thinking": False})
    check(plan_of(reasoning=parser, asked=off), "no thought", ("", "no thought", []))


def test_a_prompt_that_ends_the_thinking() -> None:
    asked = query(tail="<|im_start|>assistant\n<think>\n\n</think>\n\n", tools=())
    plan = plan_of(reasoning=thoughts("derived_thoughts"), asked=asked)
    check(plan, "no thought here", ("", "no thought here", []))


def test_calls_behind_the_thinking() -> None:
    text = f"<think>I call {CALL}</think>Sure. {CALL}"
    wanted = (f"I call {CALL}", "Sure. ", CALLS)
    tool = load_parser("tool_parser", "state_machine", "state_machine.py")
    check(plan_of(tool, thoughts()), text, wanted)
    native = Thinks(None)
    check(plan_of(tool, native), text, wanted)


def test_calls_of_an_ordinary_parser_behind_the_thinking() -> None:
    text = '<think>[call]no {}[/call]</think>So [call]f {"a": 1}[/call]'
    wanted = ("[call]no {}[/call]", "So", CALLS)
    check(plan_of(NameAndJson(None), thoughts()), text, wanted)


def test_tokens_of_reasoning_are_counted() -> None:
    plan = plan_of(reasoning=thoughts(), asked=query(tools=()))
    ids, pieces = tokens_of("<think>why not</think>because")
    for size in (1, 3, len(ids)):
        counted = CountedSession(plan)
        for at in range(0, len(ids), size):
            part = pieces[at : at + size]
            counted.feed("".join(part), ids[at : at + size], [len(p) for p in part])
        counted.finish()
        inside = ids[1 : ids.index(tokens_of("</think>")[0][0]) + 1]
        assert counted.num_reasoning_tokens == len(inside)
