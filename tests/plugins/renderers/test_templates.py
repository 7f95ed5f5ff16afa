"""Chat templates: they see what transformers shows them, and can neither escape nor run away."""

from __future__ import annotations

import resource
import time
from typing import Any

import pytest
from transformers.utils.chat_template_utils import render_jinja_template

from dovetail.errors import ConfigError, RequestError
from dovetail.server.generate.body.chat import ChatRequest, Message
from dovetail.server.generate.rendering.chat import RenderedPrompt
from dovetail.server.generate.rendering.messages import normalise
from dovetail_plugins.renderers._jinja import ChatTemplate
from dovetail_testing.fakes.async_engine import FakeFacts
from support.renderers import chat_renderer

MESSAGES = [{"role": "user", "content": "hi"}]

DOUBLED = "{{% set n = namespace(x='aaaaaaaa') %}}{{% for i in range(99) %}}{}{{% endfor %}}"

RUNAWAYS = (
    "{% for i in range(10**9) %}x{% endfor %}",
    "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
    "{% macro f(n) %}{{ f(n) }}{% endmacro %}{{ f(1) }}",
    "{% macro f(n) %}{% if n %}{{ f(n-1) }}{{ f(n-1) }}{% endif %}{% endmacro %}{{ f(60) }}",
    "{% for i in [1] recursive %}{{ loop([1]) }}{% endfor %}",
    "{{ 'a' * 10**10 }}",
    "{{ [0] * 10**9 }}",
    "{{ 9**9**9**9 }}",
    DOUBLED.format("{% set n.x = n.x ~ n.x %}"),
    DOUBLED.format("{% set n.x = n.x + n.x %}"),
    DOUBLED.format("{% set y %}{{ n.x }}{{ n.x }}{% endset %}{% set n.x = y %}"),
    "{% set n = namespace(x=9) %}{% for i in range(999) %}{% set n.x = n.x * n.x %}{% endfor %}",
    "{{ 'a'.ljust(10**9) }}",
    "{{ 'a'|center(10**9) }}",
    "{{ '%1000000000d' % 1 }}",
    "{{ '%*d' % (1000000000, 1) }}",
    "{{ '{:1000000000d}'.format(1) }}",
    "{{ '%1000000000d'|format(1) }}",
    "{{ ('a' * 1000000).replace('', 'b' * 1000000) }}",
    "{{ ('a' * 1000000)|replace('', 'b' * 1000000) }}",
    "{{ ('a' * 1000000).join(['b'] * 1000000) }}",
    "{{ (['a'] * 1000000)|join('b' * 1000000) }}",
    "{{ ('\n' * 1000000)|indent(9999) }}",
    "{{ [1]|tojson(indent=100000000) }}",
    "{{ ([[0]] * 900000)|sum(start=[]) }}",
    "{{ (range(99999)|map('center', 9999)|list)|length }}",
    "{{ lipsum(n=10**9) }}",
)
ESCAPES = (
    "{{ ''.__class__.__mro__ }}",
    "{{ messages.__class__.__init__.__globals__ }}",
    "{{ cycler.__init__.__globals__.os.system('id') }}",
    "{{ raise_exception.__globals__ }}",
    "{{ tojson.__globals__ }}{{ strftime_now.__globals__['__builtins__'] }}",
    "{{ ''|attr('__class__') }}{{ (''|attr('__class__')).mro() }}",
    "{{ '{0.__class__.__mro__}'.format('') }}",
    "{{ messages.append(1) }}",
    "{{ messages[0].update({'role': 'x'}) }}",
    "{% include '/etc/passwd' %}",
    "{% import 'os' as os %}",
    "{% extends '/etc/passwd' %}",
)


def render(source: str, **variables: Any) -> str:
    return ChatTemplate(source).render({"messages": MESSAGES} | variables)


WIDE = "{% set x = ['y'] * 1000 %}{% set x = [x] * 1000 %}{% set x = [x] * 1000 %}"
NESTED = "{% set n = namespace(x=['y']) %}" + "{% set n.x = [n.x, n.x] %}" * 30
TWICE = NESTED + NESTED.replace("n.", "m.").replace(" n ", " m ")
TUPLES = "{% set n = namespace(x=(1,)) %}" + "{% set n.x = (n.x, n.x) %}" * 30
TEXT = "{% set s = 'y' * 100000 %}"
NATIVE = [
    WIDE + "{{ x }}",
    WIDE + "{{ x | string }}",
    WIDE + "{{ x | tojson }}",
    WIDE + "{{ x | upper }}",
    WIDE + "{{ x ~ 'a' }}",
    WIDE + "{{ x | join('') }}",
    WIDE + "{{ x | pprint }}",
    WIDE + "{{ '%s' % [x] }}",
    WIDE + "{{ '%s' | format(x) }}",
    WIDE + "{{ '{}'.format(x) }}",
    WIDE + "{{ {'a': x} }}",
    WIDE + "{{ {'a': x} | tojson }}",
    NESTED + "{{ n.x }}",
    TWICE + "{{ n.x == m.x }}",
    TWICE + "{{ n.x in [m.x] }}",
    TWICE + "{{ n.x is eq(m.x) }}",
    TWICE + "{{ [n.x, m.x] | sort }}",
    TWICE + "{{ [n.x].count(m.x) }}",
    TUPLES + "{{ {n.x: 1} | length }}",
    TUPLES + "{{ {'a': 1}[n.x] }}",
    TUPLES + "{{ {'a': 1}.get(n.x) }}",
    TUPLES + "{{ [n.x, n.x] | unique | list | length }}",
    TEXT + "{{ ('%s' * 10000) % ((s,) * 10000) }}",
    TEXT + "{{ ('%(a)s' * 10000) % {'a': s} }}",
    TEXT + "{{ ('%(a)s' * 10000) | format(a=s) }}",
    TEXT + "{{ ('{0}' * 10000).format(s) }}",
    TEXT + "{{ ('{a}' * 10000).format_map({'a': s}) }}",
    "{{ '{:{}}'.format('x', '999999999') }}",
    TEXT + "{{ ([s] * 10000) | join }}",
]
"""A few short steps make what one native call would write, compare or hash for hours."""


@pytest.mark.parametrize("source", NATIVE)
def test_no_native_call_is_long_or_large(source: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start_s = time.thread_time()
    with pytest.raises((RequestError, ConfigError)):
        render(source)
    assert time.thread_time() - start_s < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000


def test_what_is_written_once_is_written() -> None:
    assert render("{{ [1, [2, ('a',)]] }}{{ {'a': [1]} }}") == "[1, [2, ('a',)]]{'a': [1]}"
    assert render("{{ '%s-%s' % (1, [2]) }}{{ '{}{a}'.format(1, a=[2]) }}") == "1-[2]1[2]"
    assert render("{{ '{{{0}}}'.format(1) }}{{ [1] == [1] }}{{ [1] in [[1]] }}") == "{1}TrueTrue"
    assert render("{{ {(1, 2): 3}[(1, 2)] }}{{ [3, 1] | sort }}") == "3[1, 3]"


@pytest.mark.parametrize("source", RUNAWAYS)
def test_runaways_are_refused_quickly(source: str) -> None:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    start_s = time.thread_time()
    with pytest.raises((RequestError, ConfigError)):
        render(source)
    assert time.thread_time() - start_s < 2
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 400_000


@pytest.mark.parametrize("source", ESCAPES)
def test_escapes_are_refused(source: str) -> None:
    with pytest.raises((RequestError, ConfigError)):
        text = render(source)
        # An undefined or unsafe value may also render as nothing.
        assert text in ("", "None")
        raise RequestError("harmless")
    assert MESSAGES == [{"role": "user", "content": "hi"}]


def test_tojson_is_transformers() -> None:
    value = {"b": "<é>&'", "a": [1, True, None]}
    assert render("{{ v|tojson }}", v=value) == '{"b": "<é>&\'", "a": [1, true, null]}'
    assert render("{{ v|tojson(indent=2, sort_keys=true) }}", v={"b": 1, "a": 2}) == (
        '{\n  "a": 2,\n  "b": 1\n}'
    )


def test_blocks_are_trimmed_and_loops_controlled() -> None:
    source = (
        "  {% for i in range(9) %}\n{% if i == 2 %}{% break %}{% endif %}\n{{ i }}\n{% endfor %}"
    )
    assert render(source) == "0\n1\n"
    source = "{% for m in messages %}{{ loop.last }}{{ loop.length }}{{ loop.index0 }}{% endfor %}"
    assert render(source) == "True10"


def test_generation_tags_are_ignored() -> None:
    assert render("a{% generation %}b{{ messages|length }}{% endgeneration %}c") == "ab1c"


def test_helpers() -> None:
    assert len(render("{{ strftime_now('%Y-%m-%d') }}")) == 10
    with pytest.raises(RequestError, match="no system turn"):
        render("{{ raise_exception('no system turn') }}")
    assert render("{{ ('a' ~ 1 ~ none) + 'b' * 2 }}") == "a1Nonebb"
    assert render("{{ ['a', 'b']|join(', ') }}{{ 'x.y'.split('.')[-1] }}") == "a, by"
    assert render("{{ 'aXb'|replace('X', '-') }}{{ 'a%s'|format('b') }}") == "a-bab"
    assert render("{{ [1, 2]|sum }}{{ '{} {}'.format(1, 2) }}") == "31 2"


def test_kwargs_are_an_allow_list() -> None:
    facts = FakeFacts(special_tokens={"eos_token": "</s>"})
    renderer = chat_renderer(facts, "{{ enable_thinking }}{{ messages[0].content }}")

    def rendered(**kwargs: Any) -> RenderedPrompt:
        messages = [Message(role="user", content="hi")]
        return renderer.render(
            ChatRequest.model_construct(messages=messages, chat_template_kwargs=kwargs)
        )

    found = rendered(enable_thinking=True, other=1)
    assert (found.text, found.unused) == ("Truehi", ("chat_template_kwargs.other",))
    for name in ("messages", "tools", "tokenize", "eos_token", "__class__", "raise_exception"):
        with pytest.raises(RequestError, match="set by the server"):
            rendered(**{name: 1})


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{% for m in messages %}{{ m.content }}{% endfor %}", "string"),
        ("{% for m in messages %}{% for p in m.content %}{{ p.text }}{% endfor %}{% endfor %}",
         "openai"),
        ("{% for m in messages %}{% for p in m['content'] %}x{% endfor %}{% endfor %}", "openai"),
        ("{% for m in messages %}{% set c = m.content %}{% for p in c %}x{% endfor %}{% endfor %}",
         "openai"),
        ("{% for m in messages %}{% for p in m.content | selectattr('type', 'equalto', 'text') %}x"
         "{% endfor %}{% endfor %}", "openai"),
        ("{% for m in messages %}{% for c in m.tool_calls %}x{% endfor %}{% endfor %}", "string"),
    ],
)  # fmt: skip
def test_content_format_is_found(source: str, expected: str) -> None:
    assert ChatTemplate(source).reads.content == expected


def test_broken_templates_name_the_flag() -> None:
    with pytest.raises(ConfigError, match="--chat-template"):
        ChatTemplate("{% for %}")


def test_failures_are_the_requests_own() -> None:
    with pytest.raises(RequestError, match="UndefinedError"):
        render("{{ messages[0].nope.nope }}")


LOOP = "{% for part in message['content'] FILTER %}{{ part['text'] }}{% endfor %}"
PARTS_ALONE = (
    LOOP.replace("FILTER", ""),
    LOOP.replace("FILTER", "| selectattr('type', 'equalto', 'text')"),
    "{% set c = message.content %}" + LOOP.replace("message['content'] FILTER", "c"),
    "{{ message.role is string }}" + LOOP.replace("FILTER", ""),
)


@pytest.mark.parametrize("body", PARTS_ALONE)
def test_a_text_is_a_part_where_a_template_reads_parts_alone(body: str) -> None:
    """What LLaVA's template does. transformers' reading of the same text as a part is the same."""
    source = "{% for message in messages %}<{{ message.role }}>" + body + "{% endfor %}"
    wanted = render_jinja_template(
        [[{"role": "user", "content": [{"type": "text", "text": "What is it?"}]}]],
        chat_template=source,
    )[0][0]
    assert "What is it?" in wanted
    template = ChatTemplate(source)
    found, _ = normalise([Message(role="user", content="What is it?")], template.reads)
    assert template.reads.content == "openai" and template.render({"messages": found}) == wanted


@pytest.mark.parametrize("test", ["is string", "is defined and message.content is string"])
def test_a_text_stays_one_where_a_template_asks(test: str) -> None:
    source = (
        "{% for message in messages %}{% if message['content'] TEST %}{{ message['content'] }}"
        "{% else %}{% for p in message['content'] %}{{ p }}{% endfor %}{% endif %}{% endfor %}"
    ).replace("TEST", test)
    found, _ = normalise([Message(role="user", content="a")], ChatTemplate(source).reads)
    assert found[0]["content"] == "a"
