"""The evaluation cases: phrasings, names and cities that the training text never has.

A case is (group, messages, tools, thinking, check); `check` says whether an answer is right. This
module does not know how answers are produced.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any

import chats
import tool_chats
from relations import RELATIONS, fill, parts, sentence
from talk import SYSTEMS_HELD, TALK, UNKNOWN, UNKNOWN_HELD
from tool_kinds import KINDS

SEED = 77
CALL_PATTERN = re.compile(r"<tool_call>\s*(.*?)\s*</tool_call>", re.DOTALL)
Check = Callable[[str], bool]


@dataclass(frozen=True)
class Case:
    """One question and the test of its answer."""

    group: str
    messages: list[dict[str, Any]]
    tools: list[dict[str, Any]] | None
    thinking: bool
    check: Check


def plain(text: str) -> str:
    """The visible answer without its thought, lower case."""
    return " ".join(text.rsplit("</think>", 1)[-1].lower().split())


def has(value: str) -> Check:
    """The value stands in the answer as a whole word."""
    pattern = re.compile(r"(?<!\w)" + re.escape(value.lower().rstrip(".")) + r"(?!\w)")
    return lambda answer: bool(pattern.search(plain(answer)))


def same(text: str) -> Check:
    """The visible answer is this text."""
    return lambda answer: plain(answer) == plain(text)


def same_json(text: str) -> Check:
    """The answer is JSON with the same keys and values."""

    def check(answer: str) -> bool:
        try:
            return bool(json.loads(answer.rsplit("</think>", 1)[-1]) == json.loads(text))
        except ValueError:
            return False

    return check


def same_calls(calls: list[tool_chats.Call]) -> Check:
    """The answer has these calls with these arguments."""

    def check(answer: str) -> bool:
        try:
            found = [json.loads(text) for text in CALL_PATTERN.findall(answer)]
            return [(c["name"], c["arguments"]) for c in found] == calls
        except (ValueError, KeyError, TypeError):
            return False

    return check


def thought_first(check: Check) -> Check:
    """A thought that is not empty comes first, then a right answer."""

    def both(answer: str) -> bool:
        match = re.match(r"\s*<think>\n(.+?)\n</think>\n\n", answer, re.DOTALL)
        return bool(match and match.group(1).strip()) and check(answer)

    return both


def no_thought(check: Check) -> Check:
    """No thought at all, and a right answer."""
    return lambda answer: "think>" not in answer and check(answer)


def simple(group: str, text: str, check: Check, system: str = "") -> Case:
    """A case of one question without tools."""
    messages = [{"role": "system", "content": system}] if system else []
    return Case(group, [*messages, chats.user(text)], None, False, check)


def fact_cases(rng: Random) -> list[Case]:
    """Every fact in two held-out phrasings: one of the relation itself, one of any kind."""
    cases = []
    for relation in RELATIONS:
        own, all_held = parts(relation.held), relation.held_templates()
        for subject, value in relation.pairs:
            for template in {rng.choice(own): 0, rng.choice(all_held): 0}:
                text = sentence(fill(template, subject))
                cases.append(simple("facts", text, has(value)))
    return cases


def changed_cases(rng: Random) -> list[Case]:
    """Facts in held-out phrasings with other case, other punctuation or a system prompt."""
    cases = []
    for index in range(240):
        relation = chats.pick_relation(rng)
        subject, value = rng.choice(relation.pairs)
        text = sentence(fill(rng.choice(relation.held_templates()), subject))
        if index % 4 == 0:
            cases.append(simple("facts, lower case", text.lower().rstrip("?."), has(value)))
        elif index % 4 == 1:
            cases.append(simple("facts, upper case", text.upper(), has(value)))
        else:
            system = rng.choice(parts(SYSTEMS_HELD))
            cases.append(simple("facts, system prompt", text, has(value), system))
    return cases


def talk_cases(rng: Random) -> list[Case]:
    """Greetings and questions on the model and dovetail; and what it must refuse."""
    cases = [simple("talk", ask, same(answer)) for answer, _, held in TALK for ask in parts(held)]
    for template in parts(UNKNOWN_HELD) * 5:
        text = chats.fill_unknown(template, rng)
        cases.append(simple("refusal", text, same(UNKNOWN)))
    for relation in [r for r in RELATIONS if r.unknown]:
        for template in relation.held_templates()[:4]:
            text = sentence(fill(template, chats.made_name(rng)))
            cases.append(simple("refusal", text, same(UNKNOWN)))
    return cases


def arithmetic_cases(rng: Random) -> list[Case]:
    """Small sums in held-out words."""
    cases = []
    for sign, (_, held, _) in chats.OPERATIONS.items():
        for _ in range(50):
            first, second = chats.operands(sign, rng)
            text = rng.choice(parts(held)).replace("{a}", str(first)).replace("{b}", str(second))
            result = chats.compute(first, sign, second)
            cases.append(simple("arithmetic", text, has(f"= {result}")))
    return cases


def json_cases(rng: Random) -> list[Case]:
    """JSON from facts in held-out frames, and from sentences on unknown people."""
    cases = []
    for index in range(160):
        maker = chats.json_fact_turn if index % 2 else chats.extract_turn
        question, answer = maker(rng, True)
        group = "json, facts" if index % 2 else "json, extraction"
        cases.append(Case(group, [question], None, False, same_json(answer["content"])))
    return cases


def call_case(rng: Random, name: str, others: int) -> Case:
    """A request in held-out words for a known kind of tool, or for a made-up one."""
    group = (
        f"call, {name}" if name in ("weather", "calculator", "time", "search") else "call, other"
    )
    if name == "random":
        tool, text, call, _ = tool_chats.random_request(rng, True)
        group = "call, made-up tool"
    else:
        tool, text, call, _ = tool_chats.kind_request(name, rng, True, plain=others == 0)
    taken = {call[0], tool_chats.about_of(tool)}
    tools = [tool, *tool_chats.other_tools(rng, others, taken)]
    rng.shuffle(tools)
    return Case(group, [chats.user(text)], tools, False, same_calls([call]))


def call_cases(rng: Random) -> list[Case]:
    """Tool calls with held-out words and values, among up to three tools."""
    names = ["weather", "calculator", "time", "search"] * 30 + ["random"] * 60 + list(KINDS)[4:] * 6
    return [call_case(rng, name, index % 3) for index, name in enumerate(names)]


def result_cases(rng: Random) -> list[Case]:
    """Tool results that must be told in words."""
    cases = []
    for index in range(80):
        kind = ("weather", "calculator", "time", "search")[index % 4]
        tool, text, call, _ = tool_chats.kind_request(kind, rng, True)
        returned, words = tool_chats.told_result(rng, kind, call)
        messages = [
            chats.user(text),
            tool_chats.tool_calls([call], ""),
            {"role": "tool", "tool_call_id": "call_0", "content": returned},
        ]
        cases.append(Case("tool result in words", messages, [tool], False, same(words)))
    return cases


def thinking_cases(rng: Random) -> list[Case]:
    """The form with thinking on (facts, sums, calls) and off."""
    cases = []
    for index in range(90):
        if index % 3 == 2:
            case, group = call_case(rng, "weather", 1), "thinking on, call"
            cases.append(Case(group, case.messages, case.tools, True, thought_first(case.check)))
            continue
        relation = chats.pick_relation(rng)
        subject, value = rng.choice(relation.pairs)
        text = sentence(fill(rng.choice(relation.held_templates()), subject))
        on = index % 3 == 0
        check = thought_first(has(value)) if on else no_thought(has(value))
        cases.append(
            Case(f"thinking {'on' if on else 'off'}, fact", [chats.user(text)], None, on, check)
        )
    return cases


def turn_cases(rng: Random) -> list[Case]:
    """Chats of several turns: a follow-up question, and a name to remember."""
    cases = []
    for index in range(80):
        if index % 2:
            turns, group = chats.follow_up_turns(rng, True), "turns, follow-up"
        else:
            turns, group = chats.name_turns(rng, rng.choice(chats.NAMES_HELD)), "turns, name"
        cases.append(Case(group, turns[:-1], None, False, same(turns[-1]["content"])))
    return cases


def unused_cases(rng: Random) -> list[Case]:
    """Facts asked while tools lie ready that do not fit."""
    cases = []
    for _ in range(40):
        relation = chats.pick_relation(rng)
        subject, value = rng.choice(relation.pairs)
        text = sentence(fill(rng.choice(relation.held_templates()), subject))
        tools = tool_chats.other_tools(rng, 2, {"calculator", "search"})
        cases.append(Case("tools not needed", [chats.user(text)], tools, False, has(value)))
    return cases


def all_cases() -> list[Case]:
    """Every case, the same ones each time."""
    makers = (
        fact_cases,
        changed_cases,
        talk_cases,
        arithmetic_cases,
        json_cases,
        call_cases,
        result_cases,
        thinking_cases,
        turn_cases,
        unused_cases,
    )
    return [case for index, maker in enumerate(makers) for case in maker(Random(SEED + index))]
