"""Chats with tools: a call is chosen and written, or a tool result is told in words.

Tools are given as OpenAI function schemas. Half of them are made up on the spot, so the model has
to copy names and values. This module does not know the chat template.
"""

import json
from random import Random
from typing import Any

from chats import (
    NAMES,
    WORDS,
    Message,
    Sample,
    any_city,
    assistant,
    easy_turn,
    made_name,
    made_up,
    noisy,
    user,
    with_system,
)
from relations import parts, sentence, word_list
from talk import NO_TOOL
from tool_kinds import KINDS, Slot, ToolKind, draw_clock, draw_number, draw_words

Tool = dict[str, Any]
Call = tuple[str, dict[str, Any]]

VERBS = word_list(
    """get set find make open close start stop list read write add remove update check send run
    create delete move copy count sort load save lock paint build join split"""
)
NOUNS = WORDS + word_list(
    """user file order invoice door light room task event report device account message ticket
    page image record server job table color size price speed"""
)
SLOT_NAMES = word_list(
    """name id title color size count path level mode kind label amount speed key value user file
    room day date item code target owner limit page style group"""
)

RANDOM_FRAMES = """Call {f} with {p}.|Use {f} with {p}.|Run {f} with {p}.|Please call {f} with {p}.
Call the tool {f} with {p}.|Use the tool {f}: {p}.|Invoke {f} with {p}.|{f}: {p}
I want you to call {f} with {p}.|Execute {f} with {p}.
Can you call {f} with {p}?"""
RANDOM_HELD = """Could you run {f} with {p}?|Please use {f} with {p}.|Start {f} with {p}.
"""
TASK_FRAMES = (
    "{t} with {p}.|Please {l} with {p}.|{t}, {p}.|I want to {l} with {p}.|Can you {l} with {p}?"
)
TASK_HELD = "Could you {l} with {p}?|I need you to {l} with {p}."
CONDITIONS = word_list(
    """sunny rainy cloudy windy snowy foggy clear stormy dry humid hot cold warm mild"""
)


def schema(
    name: str,
    about: str,
    slots: list[tuple[str, Slot]],
    rng: Random,
    extra: dict[str, list[str]] | None = None,
) -> Tool:
    """An OpenAI function schema; descriptions of parameters come and go."""
    properties: dict[str, Any] = {}
    described = rng.random() < 0.5
    for key, slot in slots:
        properties[key] = {"type": slot.type}
        if described and slot.about:
            properties[key]["description"] = slot.about
    for key, values in (extra or {}).items():
        properties[key] = {"type": "string", "enum": values}
    parameters = {"type": "object", "properties": properties}
    if rng.random() < 0.8:
        parameters["required"] = [key for key, _ in slots]
    function = {"name": name, "description": about, "parameters": parameters}
    return {"type": "function", "function": function}


def made_function_name(rng: Random) -> str:
    """A function name that was probably never seen."""
    words = [
        rng.choice(VERBS) if rng.random() < 0.7 else made_up(rng),
        rng.choice(NOUNS) if rng.random() < 0.5 else made_up(rng),
    ]
    if rng.random() < 0.2:
        return words[0] + words[1].capitalize()
    return "_".join(words + ([rng.choice(NOUNS)] if rng.random() < 0.2 else []))


def made_value(kind: str, rng: Random) -> object:
    """A value of a JSON type."""
    if kind == "integer":
        return draw_number(rng, False)
    if kind == "boolean":
        return rng.random() < 0.5
    if kind == "number":
        return round(rng.uniform(0, 100), 1)
    return rng.choice(
        (
            rng.choice(WORDS),
            made_up(rng),
            made_name(rng),
            rng.choice(NAMES),
            any_city(rng),
            draw_words(rng, False),
            draw_clock(rng, False),
        )
    )


def random_tool(rng: Random) -> tuple[Tool, list[tuple[str, str]], str]:
    """A made-up tool: its schema, its parameters with types, and its description."""
    name = made_function_name(rng)
    about = (
        " ".join(name.split("_"))
        if rng.random() < 0.6
        else " ".join((rng.choice(VERBS), "the", rng.choice(NOUNS)))
    )
    keys = dict.fromkeys(
        rng.choice(SLOT_NAMES) if rng.random() < 0.6 else made_up(rng)
        for _ in range(rng.choice((1, 1, 2, 2, 3)))
    )
    kinds = [
        (key, rng.choices(("string", "integer", "boolean", "number"), (6, 3, 1, 1))[0])
        for key in keys
    ]
    slots = [(key, Slot([key], kind, f"The {key}", lambda r, h: "")) for key, kind in kinds]
    return schema(name, sentence(about), slots, rng), kinds, about


def spoken(values: dict[str, Any], rng: Random) -> str:
    """Arguments as a person says them: `color red and size 4`."""
    link = rng.choice((" ", " ", " = ", ": ", "=", " set to "))
    said = [
        f"{key}{link}{json.dumps(value) if isinstance(value, bool) else value}"
        for key, value in values.items()
    ]
    if len(said) == 1:
        return said[0]
    return ", ".join(said[:-1]) + rng.choice((" and ", ", ")) + said[-1]


def random_request(rng: Random, held: bool = False) -> tuple[Tool, str, Call, str]:
    """A made-up tool, a request for it, the call and the thought."""
    tool, kinds, about = random_tool(rng)
    name = tool["function"]["name"]
    values = {key: made_value(kind, rng) for key, kind in kinds}
    if rng.random() < 0.65:
        frame = rng.choice(parts(RANDOM_HELD if held else RANDOM_FRAMES)).replace("{f}", name)
    else:
        frame = rng.choice(parts(TASK_HELD if held else TASK_FRAMES))
        frame = frame.replace("{t}", sentence(about)).replace("{l}", about)
    return tool, frame.replace("{p}", spoken(values, rng)), (name, values), f"I use {name}."


def kind_tool(
    kind: ToolKind, rng: Random, plain: bool = False
) -> tuple[Tool, list[str], list[str]]:
    """The schema of a known kind, its parameter names, and the optional ones."""
    first = plain or rng.random() < 0.4
    keys = [slot.names[0] if first else rng.choice(slot.names) for slot in kind.slots]
    name = kind.names[0] if first else rng.choice(kind.names)
    if not plain and rng.random() < 0.15:
        name = made_function_name(rng)
    extra = kind.optional if rng.random() < 0.35 else {}
    tool = schema(
        name, rng.choice(kind.about), list(zip(keys, kind.slots, strict=True)), rng, extra
    )
    return tool, keys, list(extra)


def kind_request(
    name: str, rng: Random, held: bool = False, plain: bool = False
) -> tuple[Tool, str, Call, str]:
    """A tool of a known kind, a request for it, the call and the thought."""
    kind = KINDS[name]
    tool, keys, extra = kind_tool(kind, rng, plain)
    values: dict[str, Any] = {
        key: slot.draw(rng, held) for key, slot in zip(keys, kind.slots, strict=True)
    }
    text = rng.choice(parts(kind.held if held else kind.asks))
    for index, value in enumerate(list(values.values())):
        text = text.replace("{" + str(index) + "}", str(value))
    if extra and rng.random() < 0.4:
        unit = rng.choice(kind.optional[extra[0]])
        text = text.rstrip("?.") + f" in {unit}" + ("?" if text.endswith("?") else ".")
        values[extra[0]] = unit
    tool_name = tool["function"]["name"]
    thought = f"The user wants {kind.verb}. I use {tool_name}."
    return tool, text, (tool_name, values), thought


def any_request(rng: Random, held: bool = False) -> tuple[Tool, str, Call, str]:
    """A request for a known kind (the four common ones more often) or for a made-up tool."""
    if rng.random() < 0.42:
        return random_request(rng, held)
    common = ("weather", "calculator", "time", "search")
    name = rng.choice(common) if rng.random() < 0.65 else rng.choice(list(KINDS))
    return kind_request(name, rng, held)


def other_tools(rng: Random, count: int, taken: set[str]) -> list[Tool]:
    """More tools beside the right one, of kinds that are not asked for."""
    tools = []
    for _ in range(count):
        if rng.random() < 0.5:
            tool = random_tool(rng)[0]
        else:
            tool = kind_tool(KINDS[rng.choice(list(KINDS))], rng)[0]
        if tool["function"]["name"] not in taken and about_of(tool) not in taken:
            taken |= {tool["function"]["name"], about_of(tool)}
            tools.append(tool)
    return tools


def about_of(tool: Tool) -> str:
    """What the tool is for: its kind where it has one, so that no two tools do the same."""
    about = str(tool["function"]["description"])
    for name, kind in KINDS.items():
        if about in kind.about:
            return name
    return about


def tool_calls(calls: list[Call], thought: str) -> Message:
    """An assistant message with calls, arguments as a JSON string as the API sends them."""
    listed = [
        {
            "id": f"call_{index}",
            "type": "function",
            "function": {"name": name, "arguments": json.dumps(values, ensure_ascii=False)},
        }
        for index, (name, values) in enumerate(calls)
    ]
    return {"role": "assistant", "content": "", "tool_calls": listed, "reasoning_content": thought}


def keep_case(text: str, rng: Random) -> str:
    """Small changes that leave the values as they are."""
    draw = rng.random()
    if draw < 0.1:
        return text.rstrip("?.")
    if draw < 0.2:
        return rng.choice(("Hi! ", "Please: ", "Hello. ", "OK. ")) + text
    return text + rng.choice((" Thanks.", " please")) if draw < 0.25 else text


def call_sample(rng: Random) -> Sample:
    """A chat that ends in a tool call, among one to five tools."""
    tool, text, call, thought = any_request(rng)
    calls = [call]
    if about_of(tool) in ("weather", "time") and rng.random() < 0.12 and len(call[1]) == 1:
        key, city = next(iter(call[1].items()))
        second = any_city(rng)
        if city in text and second != city:
            text = text.replace(
                city, f"{city} and {second}" if rng.random() < 0.7 else f"{city} and in {second}"
            )
            calls.append((call[0], {key: second}))
    tools = [
        tool,
        *other_tools(
            rng, rng.choice((0, 0, 1, 1, 2, 3)), {tool["function"]["name"], about_of(tool)}
        ),
    ]
    rng.shuffle(tools)
    before = easy_turn(rng) if rng.random() < 0.08 else []
    messages = [*before, user(keep_case(text, rng)), tool_calls(calls, thought)]
    return {
        "messages": with_system(messages, rng),
        "tools": tools,
        "thinking": rng.random() < 0.2,
        "kind": "call",
    }


def weather_result(rng: Random, call: Call) -> tuple[dict[str, Any], str]:
    """A weather result and its sentence."""
    city = next(iter(call[1].values()))
    degrees, condition = rng.randint(-15, 40), rng.choice(CONDITIONS)
    result = {
        rng.choice(("temperature", "temperature_c", "temp", "degrees")): degrees,
        rng.choice(("condition", "conditions", "weather", "sky", "description")): condition,
    }
    if rng.random() < 0.4:
        result = {"city": city, **result}
    if rng.random() < 0.25:
        result["unit"] = "celsius"
    if rng.random() < 0.15:
        result["humidity"] = rng.randint(10, 99)
    return result, f"It is {degrees} degrees and {condition} in {city}."


def generic_result(rng: Random) -> tuple[dict[str, Any], str]:
    """A flat result of a made-up tool and its sentence."""
    keys = dict.fromkeys(
        rng.choice([*SLOT_NAMES, "status", "result", "price", "text", "total"])
        if rng.random() < 0.8
        else made_up(rng)
        for _ in range(rng.choice((1, 1, 2, 3)))
    )
    result = {
        key: made_value(rng.choice(("string", "string", "integer", "number")), rng) for key in keys
    }
    said = [f"the {key} is {value}" for key, value in result.items()]
    text = said[0] if len(said) == 1 else ", ".join(said[:-1]) + " and " + said[-1]
    return result, sentence(text) + "."


def told_result(rng: Random, kind: str, call: Call) -> tuple[str, str]:
    """The text a tool returns for a call, and the answer in words."""
    if kind == "weather":
        result, words = weather_result(rng, call)
    elif kind == "time":
        clock = draw_clock(rng, False)
        result = {rng.choice(("time", "time", "local_time", "now")): clock}
        words = f"It is {clock} in {next(iter(call[1].values()))}."
    elif kind == "calculator":
        number = rng.choice(
            (rng.randint(-999, 99999), rng.randint(0, 99), round(rng.uniform(0, 99), 2))
        )
        result, words = {"result": number}, f"The result is {number}."
    elif kind == "search":
        text = sentence(draw_words(rng, False) + " is " + draw_words(rng, False) + ".")
        result, words = {rng.choice(("result", "snippet", "text")): text}, f"I found this: {text}"
    else:
        result, words = generic_result(rng)
    if len(result) == 1 and rng.random() < 0.4:
        return str(next(iter(result.values()))), plain_words(result, words, kind)
    return json.dumps(result, ensure_ascii=False), words


def plain_words(result: dict[str, Any], words: str, kind: str) -> str:
    """The sentence for a result that came as bare text, where no key can be named."""
    if kind in ("time", "calculator", "search"):
        return words
    return f"The result is {next(iter(result.values()))}."


def result_sample(rng: Random) -> Sample:
    """A chat that ends in the words for a tool result."""
    if rng.random() < 0.75:
        kind = rng.choice(("weather", "weather", "calculator", "time", "search"))
        tool, text, call, thought = kind_request(kind, rng)
    else:
        kind = "random"
        tool, text, call, thought = random_request(rng)
    returned, words = told_result(rng, kind, call)
    tools = [tool, *other_tools(rng, rng.choice((0, 0, 0, 1)), {call[0], about_of(tool)})]
    messages = [
        user(keep_case(text, rng)),
        tool_calls([call], thought),
        {"role": "tool", "tool_call_id": "call_0", "content": returned},
        assistant(words, "I tell the result."),
    ]
    return {
        "messages": with_system(messages, rng, 0.4),
        "tools": tools,
        "thinking": rng.random() < 0.2,
        "kind": "result",
    }


def unused_sample(rng: Random) -> Sample:
    """Tools are there but the question needs none; or a tool is needed and missing."""
    count = rng.choice((1, 1, 2, 3))
    if rng.random() < 0.8:
        tools = [t for t in other_tools(rng, count, {"calculator"})]
        turns = easy_turn(rng)
    else:
        kind = rng.choice(("weather", "time", "stock"))
        tools = other_tools(rng, count - 1, {kind, "search"}) if rng.random() < 0.5 else []
        text = kind_request(kind, rng)[1]
        turns = [user(noisy(text, rng)), assistant(NO_TOOL, "I have no tool for this.")]
    return {
        "messages": with_system(turns, rng),
        "tools": tools or None,
        "thinking": rng.random() < 0.2,
        "kind": "unused",
    }


def tool_sample(rng: Random) -> Sample:
    """One training sample with tools."""
    return rng.choices((call_sample, result_sample, unused_sample), (60, 25, 15))[0](rng)
