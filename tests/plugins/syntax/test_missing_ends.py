"""Calls that models write badly: ends left out, JSON that breaks, tags in values.

Every text comes to the same wherever it is cut; what is no call is content, and the calls after it
are still calls. Values that rightly hold a syntax's own tags keep them.
"""

from __future__ import annotations

import json
import random
import re
from collections.abc import Iterator

import pytest

from dovetail import registry
from dovetail.interfaces.data.text import Tool
from dovetail.interfaces.tool_parser import ToolParser
from dovetail.json_text import check
from dovetail_testing.text_splits import Parsed, parse_in_pieces
from support.cut_texts import cuts

pytest.importorskip("dovetail_plugins")

STRINGS = {name: {"type": "string"} for name in ("city", "state", "unit", "text")}
FIND = Tool(
    name="find",
    parameters={
        "type": "object",
        "properties": {**STRINGS, "days": {"type": "integer"}, "deep": {"type": "object"}},
        "required": ["city", "unit"],
    },
)
NOW = Tool(name="now", parameters={"type": "object", "properties": {"zone": {"type": "string"}}})
TOOLS = (FIND, NOW)
K_ON, K_OFF = "<|tool_calls_section_begin|>", "<|tool_calls_section_end|>"
D_ON, D_OFF = "<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"
M_ON, M_OFF = "<minimax:tool_call>", "</minimax:tool_call>"


def made(name: str) -> ToolParser:
    plugin = registry.load("tool_parser", name)
    parser: ToolParser = plugin(plugin.Options())  # type: ignore[operator]
    return parser


def parsed(name: str, text: str, tools: tuple[Tool, ...] = TOOLS) -> Parsed:
    """Return what a text comes to, having seen that it does so in any pieces."""
    parser = made(name)
    whole = parse_in_pieces([text], tool_parser=parser, tools=tools)
    for pieces in cuts(text):
        assert parse_in_pieces(pieces, tool_parser=parser, tools=tools) == whole, pieces
    return whole


def calls_of(got: Parsed) -> list[tuple[str, object]]:
    return [(call.name, json.loads(call.arguments)) for call in got.calls]


def kimi(name: str, arguments: str, end: str = "<|tool_call_end|>") -> str:
    return f"<|tool_call_begin|>functions.{name}:0<|tool_call_argument_begin|>{arguments}{end}"


def deepseek(name: str, arguments: str, end: str = "\n```<｜tool▁call▁end｜>") -> str:
    return f"<｜tool▁call▁begin｜>function<｜tool▁sep｜>{name}\n```json\n{arguments}{end}"


Q = "<tool_call>\n<function="
DALLAS = {"city": "Dallas", "state": "TX"}
LEFT_OUT = [
    # parser, text, calls
    ("qwen3_coder", f"{Q}find>\n<parameter=city>\nDallas\n<parameter=state>\nTX\n"
     "</parameter>\n</function>\n</tool_call>", [("find", DALLAS)]),
    ("qwen3_coder", f"{Q}find>\n<parameter=city>\nDallas\n<parameter=state>\nTX\n"
     "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
     [("find", {**DALLAS, "days": 3})]),
    ("qwen3_coder", "<tool_call>\n<function=find>\n<parameter=days>\n3\n<parameter=city>\nDallas\n"
     "</function>\n</tool_call>", [("find", {"days": 3, "city": "Dallas"})]),
    ("qwen3_coder", '<tool_call>\n<function=find>\n<parameter=deep>\n{"a": 1}\n<parameter=city>\n'
     "Dallas\n</parameter>\n</function>\n</tool_call>",
     [("find", {"deep": {"a": 1}, "city": "Dallas"})]),
    ("seed_oss", "<seed:tool_call>\n<function=find>\n<parameter=city>Dallas\n<parameter=state>TX"
     "</parameter>\n</function>\n</seed:tool_call>", [("find", DALLAS)]),
    ("seed_oss", "<seed:tool_call><function=find><parameter=state>TX<parameter=city>Dallas"
     "</parameter></function></seed:tool_call>", [("find", DALLAS)]),
    ("qwen3_coder", "<tool_call><function=find><parameter=city>Dallas<parameter=state>TX"
     "</parameter></function></tool_call>", [("find", DALLAS)]),
    ("qwen3_coder", "<tool_call><function=find><parameter=city>Dallas<parameter=state>TX"
     "</function></tool_call>", [("find", DALLAS)]),
    ("seed_oss", "<seed:tool_call><function=find><parameter=city>Dallas<parameter=state>TX"
     "</parameter></function></seed:tool_call>", [("find", DALLAS)]),
    ("minimax_m2", f'{M_ON}<invoke name="find"><parameter name="city">Dallas<parameter '
     f'name="state">TX</parameter></invoke>{M_OFF}', [("find", DALLAS)]),
    ("minimax_m2", f'{M_ON}\n<invoke name="find">\n<parameter name="city">Dallas\n<parameter '
     f'name="state">TX</parameter>\n</invoke>\n{M_OFF}', [("find", DALLAS)]),
    ("glm45", "<tool_call>find\n<arg_key>city</arg_key>\n<arg_value>Dallas\n<arg_key>state"
     "</arg_key>\n<arg_value>TX</arg_value>\n</tool_call>", [("find", DALLAS)]),
    ("glm45", "<tool_call>find<arg_key>city</arg_key><arg_value>Dallas<arg_key>state</arg_key>"
     "<arg_value>TX</arg_value></tool_call>", [("find", DALLAS)]),
    ("glm45", "<tool_call>find<arg_key>city</arg_key><arg_value>Dallas</tool_call>",
     [("find", {"city": "Dallas"})]),
    # a call's end
    ("qwen3_coder", f"{Q}now>\n<parameter=zone>\nUTC\n</parameter>\n</function>\n"
     "<tool_call>\n<function=find>\n<parameter=city>\nDallas\n</parameter>\n</function>\n"
     "</tool_call>", [("now", {"zone": "UTC"}), ("find", {"city": "Dallas"})]),
    ("qwen3_coder", "<tool_call>\n<function=now>\n<parameter=zone>\nUTC\n</parameter>\n</tool_call>"
     "\n<tool_call>\n<function=find>\n</function>\n</tool_call>",
     [("now", {"zone": "UTC"}), ("find", {})]),
    ("qwen3_coder", "<tool_call>\n<function=now>\n<parameter=zone>\nUTC\n</parameter>\n"
     "<function=find>\n</function>\n</tool_call>", [("now", {"zone": "UTC"}), ("find", {})]),
    ("qwen3_coder", f"{Q}now>\n<parameter=zone>\nUTC\n</function>\n</tool_call>\n"
     "<tool_call>\n<function=find>\n<parameter=city>\nDallas\n</parameter>\n</function>\n"
     "</tool_call>", [("now", {"zone": "UTC"}), ("find", {"city": "Dallas"})]),
    ("hermes", '<tool_call>\n{"name": "now", "arguments": {}}\n<tool_call>\n{"name": "find", '
     '"arguments": {"city": "Dallas"}}\n</tool_call>',
     [("now", {}), ("find", {"city": "Dallas"})]),
    ("hermes", '<tool_call>{"name": "now", "arguments": {}\n<tool_call>{"name": "find", '
     '"arguments": {}}</tool_call>', [("now", {}), ("find", {})]),
    ("glm45", "<tool_call>now<arg_key>zone</arg_key><arg_value>UTC</arg_value><tool_call>find"
     "<arg_key>city</arg_key><arg_value>Dallas</arg_value></tool_call>",
     [("now", {"zone": "UTC"}), ("find", {"city": "Dallas"})]),
    ("glm45", "<tool_call>now\n<tool_call>find\n</tool_call>", [("now", {}), ("find", {})]),
    ("glm45", "<tool_call>now<arg_key>zone</arg_key><arg_value>UTC</tool_call><tool_call>find"
     "<arg_key>city</arg_key><arg_value>Dallas</arg_value></tool_call>",
     [("now", {"zone": "UTC"}), ("find", {"city": "Dallas"})]),
    ("minimax_m2", f'{M_ON}<invoke name="now"><parameter name="zone">UTC</parameter><invoke '
     f'name="find"></invoke>{M_OFF}', [("now", {"zone": "UTC"}), ("find", {})]),
    ("minimax_m2", f'{M_ON}<invoke name="now"><parameter name="zone">UTC\n</invoke>\n<invoke '
     f'name="find"><parameter name="city">Dallas</parameter></invoke>{M_OFF}',
     [("now", {"zone": "UTC"}), ("find", {"city": "Dallas"})]),
    ("kimi_k2", K_ON + kimi("now", "{}", "") + kimi("find", "{}") + K_OFF,
     [("now", {}), ("find", {})]),
    ("deepseek_v3", D_ON + deepseek("now", "{}", "\n```") + deepseek("find", "{}") + D_OFF,
     [("now", {}), ("find", {})]),
    # closing tags written twice
    ("qwen3_coder", f"{Q}find>\n<parameter=days>\n3\n</parameter>\n</parameter>\n"
     "</function>\n</tool_call>", [("find", {"days": 3})]),
]  # fmt: skip


@pytest.mark.parametrize(("name", "text", "calls"), LEFT_OUT)
def test_ends_that_are_left_out(
    name: str, text: str, calls: list[tuple[str, dict[str, object]]]
) -> None:
    got = parsed(name, text)
    assert (calls_of(got), got.content) == (calls, "")
    got = parsed(name, f"I look. {text} So.")
    assert (calls_of(got), got.content) == (calls, "I look. So.")


BAD = ("{invalid json}", '{"city": "Dal"las"}', '{"city": Dallas}', '{"city": "Dallas",}',
       "{'a': 1}", '{"city": "Dallas", "days": 3', '{"city": NaN}', '{"city": "a\\x"}')  # fmt: skip
GOOD = '{"city": "Paris"}'


def broken(name: str, bad: str) -> str:
    """Return a call whose arguments are not JSON, then one that is right."""
    match name:
        case "kimi_k2":
            return K_ON + kimi("find", bad) + kimi("find", GOOD) + K_OFF
        case "deepseek_v3":
            return D_ON + deepseek("find", bad) + deepseek("find", GOOD) + D_OFF
        case "deepseek_v31":
            calls = [
                f"<｜tool▁call▁begin｜>find<｜tool▁sep｜>{a}<｜tool▁call▁end｜>"
                for a in (bad, GOOD)
            ]
            return f"{D_ON}{''.join(calls)}{D_OFF}"
        case "mistral":
            return f"[TOOL_CALLS]find[ARGS]{bad}[TOOL_CALLS]find[ARGS]{GOOD}"
        case "openai":
            start = "<|channel|>commentary to=functions.find <|constrain|>json<|message|>"
            return f"{start}{bad}<|call|><|start|>assistant{start}{GOOD}<|call|>"
        case "granite-20b-fc":
            start = '<function_call> {"name": "find", "arguments": '
            return f"{start}{bad}}} {start}{GOOD}}}"
        case _:
            calls = [
                f'<tool_call>\n{{"name": "find", "arguments": {a}}}\n</tool_call>'
                for a in (bad, GOOD)
            ]
            return "\n".join(calls)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("bad", BAD)
@pytest.mark.parametrize(
    "name",
    ["kimi_k2", "deepseek_v3", "deepseek_v31", "mistral", "openai", "granite-20b-fc", "hermes",
     "granite"],
)  # fmt: skip
def test_arguments_that_are_not_json_are_content(name: str, bad: str) -> None:
    if bad.endswith("3") and name in ("hermes", "granite", "granite-20b-fc"):
        pytest.skip("the brace that closes the call closes its arguments")
    got = parsed(name, broken(name, bad))
    assert calls_of(got) == [("find", {"city": "Paris"})]
    assert bad in got.content
    assert "Paris" not in got.content


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("llama3_json", '{"name": "find", "parameters": {invalid json}}'),
        ("llama3_json", '<|python_tag|>{"name": "find", "parameters": {"city": Dallas}}'),
        ("xlam", '[{"name": "find", "arguments": {invalid json}}]'),
        ("phi4_mini_json", 'functools[{"name": "find", "arguments": {"city": "Dal"las"}}]'),
        ("jamba", '<tool_calls>[{"name": "find", "arguments": {"city": Dallas}}]</tool_calls>'),
        ("minimax", '<tool_calls>\n{"name": "find", "arguments": {"city": }}\n</tool_calls>'),
        ("internlm", '<|action_start|><|plugin|>{"name": "find", "parameters": {a}}<|action_end|>'),
        ("qwen3_coder", "<tool_call>\n<function=find>\n<parameter=days>\n3\n</parameter>\noops\n"
         "</function>\n</tool_call>"),
        ("glm45", "<tool_call>find<arg_key>days</arg_key><arg_value>3</arg_value>oops</tool_call>"),
        ("lfm2", '<|tool_call_start|>[find(city="Dallas" oops)]<|tool_call_end|>'),
    ],
)  # fmt: skip
def test_what_is_no_call_is_content_as_it_was_written(name: str, text: str) -> None:
    got = parsed(name, text)
    assert (got.content, got.calls) == (text, ())


def test_a_call_that_breaks_among_others_is_content() -> None:
    text = (
        f'{M_ON}<invoke name="now"></invoke><invoke name="find"><parameter name="days">3'
        f'</parameter>oops</invoke><invoke name="now"></invoke>{M_OFF}'
    )
    got = parsed("minimax_m2", text)
    assert calls_of(got) == [("now", {}), ("now", {})]
    assert got.content == '<invoke name="find"><parameter name="days">3</parameter>oops</invoke>'


def test_long_arguments_are_passed_on_as_far_as_they_are_json() -> None:
    """They do not wait for their end; where they break off, nothing that is not JSON follows."""
    long = '{"city": "' + "x" * 400
    got = parsed(
        "hermes", f'<tool_call>{{"name": "find", "arguments": {long}" oops}}}}</tool_call> on'
    )
    (call,) = got.calls
    assert call.arguments == f'{long}" '
    assert got.content == "on"


@pytest.mark.parametrize("name", ["openai", "mistral", "llama3_json", "xlam", "pythonic"])
def test_calls_behind_regions_that_are_none(name: str) -> None:
    """One opening marker in other text does not hide the calls that follow."""
    parser = made(name)
    sample = next(s for s in parser.samples if s.calls and not s.content and len(s.calls) == 1)
    start = next(m.start for m in parser.markers if not m.opens_answer)
    is_bare = sample.text.startswith(("[", "{")) and not sample.text.startswith(start)
    text = start + sample.text if is_bare else sample.text
    if name == "openai":
        text = text.removesuffix("<|call|>")
    end = next((m.end for m in parser.markers if m.start == start), "")
    got = parsed(
        name, f"{start} they say, and {start} again. {text}{end if end not in text else ''}", ()
    )
    assert got.calls == sample.calls
    assert got.content == f"{start} they say, and {start} again."


PIECES = {
    "qwen3_coder": ("<tool_call>", "</tool_call>", "<function=find>", "</function>",
                    "<parameter=x>", "<parameter=city>", "\n<parameter=x>\n", "\n</function>\n",
                    "\n</tool_call>\n"),
    "seed_oss": ("<seed:tool_call>", "</seed:tool_call>", "<function=find>", "\n</function> ",
                 "<parameter=x>", "<parameter=text>", "\n<parameter=x>", "\n<parameter=text>"),
    "minimax_m2": (M_ON, M_OFF, '<invoke name="find">', "</invoke>", '<parameter name="x">',
                   '\n<parameter name="text">'),
    "glm45": ("<tool_call>", "</tool_call>", "<arg_key>", "</arg_key>", "<arg_value>",
              "<arg_key>x</arg_key><arg_value>", "</tool_call><tool_call>"),
}  # fmt: skip
AROUND = {
    "qwen3_coder": ("<tool_call>\n<function=find>\n<parameter=text>\n{}\n</parameter>\n<parameter="
                    "state>\nTX\n</parameter>\n</function>\n</tool_call>"),
    "seed_oss": ("<seed:tool_call><function=find><parameter=text>{}</parameter>\n<parameter=state>"
                 "TX</parameter></function></seed:tool_call>"),
    "minimax_m2": (M_ON + '<invoke name="find"><parameter name="text">{}</parameter><parameter '
                   'name="state">TX</parameter></invoke>' + M_OFF),
    "glm45": ("<tool_call>find<arg_key>text</arg_key><arg_value>{}</arg_value><arg_key>state"
              "</arg_key><arg_value>TX</arg_value></tool_call>"),
}  # fmt: skip


def texts(name: str) -> Iterator[str]:
    """Yield values that hold a syntax's own tags, no closing tag of their own among them."""
    chance = random.Random(name)
    words = (*PIECES[name], "a", " b ", "\n", "<", ">", '"', "é", "x" * 40)
    for _ in range(60):
        yield "a" + "".join(chance.choices(words, k=chance.randint(1, 5))) + "z"


@pytest.mark.parametrize("name", PIECES)
def test_values_may_hold_tags(name: str) -> None:
    parser = made(name)
    num_held = 0
    for text in texts(name):
        if "\n<parameter=city>" in text or re.search(r"</function>\s*</.*tool_call>", text):
            continue  # It reads like an argument, or a call, whose end was left out.
        if "<parameter=text>" in text.partition("find>")[2]:
            continue  # It reads like another call.
        written = AROUND[name].format(text)
        got = parse_in_pieces([written], tool_parser=parser, tools=TOOLS)
        assert calls_of(got) == [("find", {"text": text, "state": "TX"})], written
        assert got.content == ""
        num_held += 1
        for pieces in list(cuts(written))[:5]:
            assert parse_in_pieces(pieces, tool_parser=parser, tools=TOOLS) == got
    assert num_held > 25


@pytest.mark.parametrize("name", PIECES)
def test_a_parameter_that_follows_was_not_left_open(name: str) -> None:
    """The tag of a declared parameter in a value is the value's, if the parameter follows."""
    key = {"qwen3_coder": "\n<parameter=state>\n", "seed_oss": "\n<parameter=state>",
           "minimax_m2": '\n<parameter name="state">',
           "glm45": "<arg_key>state</arg_key><arg_value>"}[name]  # fmt: skip
    got = parsed(name, AROUND[name].format(f"see{key}there"))
    assert calls_of(got) == [("find", {"text": f"see{key}there", "state": "TX"})]


def test_strings_may_hold_the_tags_of_json_syntaxes() -> None:
    for name, text in (
        ("kimi_k2", K_ON + kimi("find", '{"text": "%s"}') + kimi("now", "{}") + K_OFF),
        ("deepseek_v3", D_ON + deepseek("find", '{"text": "%s"}') + deepseek("now", "{}") + D_OFF),
        ("hermes", '<tool_call>{"name": "find", "arguments": {"text": "%s"}}</tool_call>'
         '<tool_call>{"name": "now", "arguments": {}}</tool_call>'),
    ):  # fmt: skip
        parser = made(name)
        tags = [*parser.inner, *(t for m in parser.markers for t in (m.start, m.end))]
        for held in (*tags, "".join(tags), " ".join(tags) + "\n{}"):
            got = parsed(name, text % held)
            assert calls_of(got)[1:] == [("now", {})]
            assert json.loads(got.calls[0].arguments) == {"text": held}


def test_check_is_jsons_own_judgement() -> None:
    """Against Python's reader: damaged JSON is whole, cut or wrong from the same place on."""
    chance = random.Random(1)
    reader = json.JSONDecoder(strict=False)
    value = json.dumps(
        {"a": [1, {"b": 'x"\\y\u00e9', "c": None}], "d": -1.5e9, "e": [[], {}, True]}
    )
    for _ in range(4000):
        at = chance.randrange(len(value))
        text = value[:at] + chance.choice('"\\{}[],:x1 -.eu\n') + value[at + chance.randrange(2) :]
        found = check(text)
        try:
            end = reader.raw_decode(text.lstrip())[1] + len(text) - len(text.lstrip())
        except ValueError:
            assert found.end is None, text
        else:
            assert found.end == end, text
        if found.fault is not None:
            assert check(text[: found.fault]) == check(""), text
            assert check(text[: found.fault + 1]).fault == found.fault, text


@pytest.mark.parametrize(
    "text", ['{"a": "x\ny"}', '{"a": [1, {"b": true}]}', "{}", '{"é": "\\u00e9"}']
)
def test_what_is_cut_is_not_wrong(text: str) -> None:
    assert check(text).end == len(text)
    assert all(check(text[:at]) == check("") for at in range(len(text)))
