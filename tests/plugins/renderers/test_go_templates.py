"""Templates in Go's language: what its documentation says is written, and what is refused.

The texts expected of values, blanks, control and Go's functions are what Go 1.27 writes, too.
"""

from __future__ import annotations

from datetime import date
from typing import Any

import pytest

from dovetail.errors import ConfigError, RequestError
from dovetail_plugins.renderers import _budget as budget
from dovetail_plugins.renderers.go_template.lexing import GoTemplateError
from dovetail_plugins.renderers.go_template.parsing import parse
from dovetail_plugins.renderers.go_template.running import run
from dovetail_plugins.renderers.go_template.template import GoTemplate, is_go
from dovetail_plugins.renderers.go_template.values import TOOL, JsonList, Record

DOT: dict[str, Any] = {
    "name": "Ada",
    "zero": 0,
    "empty": "",
    "none": None,
    "letters": ["a", "b", "c"],
    "no_letters": [],
    "map": {"b": 2, "a": 1.5},
    "deep": {"one": {"two": "three"}},
    "yes": True,
}
TOOL_OF_A_CLIENT = {
    "function": {
        "parameters": {
            "properties": {
                "city": {"description": "where <it> is", "type": "string"},
                "unit": {"type": ["string", "null"], "enum": ["C", "F"], "default": "C"},
                "days": {"type": "array", "items": {"type": "integer"}},
            },
            "type": "object",
            "required": ["city"],
        },
        "name": "weather",
        "strict": True,
    },
    "type": "function",
}


def go(source: str, dot: Any = None) -> str:
    parsed = parse(source)
    with budget.limited():
        return run(parsed.root, parsed.defined, DOT if dot is None else dot)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("plain", "plain"),
        ("{{ .name }}", "Ada"),
        ("{{.name}}{{.zero}}{{.yes}}", "Ada0true"),
        ("{{ .missing }}|{{ .none }}", "<no value>|<no value>"),
        ("{{ .deep.one.two }}", "three"),
        ("{{ $.deep.one.two }}", "three"),
        ("{{ (index .deep `one`).two }}", "three"),
        ("{{ .letters }} {{ .map }}", "[a b c] map[a:1.5 b:2]"),
        ("{{ 1 }} {{ -1.5 }} {{ 0x10 }} {{ 'a' }} {{ 1e6 }} {{ true }}", "1 -1.5 16 97 1e+06 true"),
        (r'{{ "a\tb\"A\x41\u00e9" }}', 'a\tb"AAé'),
        ("{{ `raw \\n }}` }}", "raw \\n }}"),
    ],
)  # fmt: skip
def test_values(source: str, expected: str) -> None:
    assert go(source) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("a  {{- 1 }}", "a1"),
        ("{{ 1 -}}  \n b", "1b"),
        ("a \n {{- 1 -}} \t\r\n b", "a1b"),
        ("{{-1 }}", "-1"),
        ("{{ 3 -}} < {{- 45 }}", "3<45"),
        ("a {{/* a comment */}} b", "a  b"),
        ("a {{- /* }} \n */ -}} b", "ab"),
        ("\n\n{{- if .yes }}\nx\n{{- end }}\n", "\nx\n"),
    ],
)
def test_blanks_and_comments(source: str, expected: str) -> None:
    assert go(source) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ if .zero }}a{{ else if .empty }}b{{ else if .yes }}c{{ else }}d{{ end }}", "c"),
        ("{{ if .no_letters }}a{{ else }}b{{ end }}", "b"),
        ("{{ with .name }}<{{ . }}>{{ end }}{{ with .empty }}a{{ else }}b{{ end }}", "<Ada>b"),
        ("{{ with $x := .deep.one }}{{ $x.two }}{{ .two }}{{ $.name }}{{ end }}", "threethreeAda"),
        ("{{ range .letters }}<{{ . }}>{{ end }}", "<a><b><c>"),
        ("{{ range $i, $e := .letters }}{{ $i }}{{ $e }}{{ end }}", "0a1b2c"),
        ("{{ range $e := .letters }}{{ $e }}{{ end }}", "abc"),
        ("{{ range $k, $v := .map }}{{ $k }}={{ $v }};{{ end }}", "a=1.5;b=2;"),
        ("{{ range .no_letters }}a{{ else }}none{{ end }}", "none"),
        ("{{ range .none }}a{{ else }}none{{ end }}", "none"),
        ("{{ range 3 }}{{ . }}{{ end }}", "012"),
        ("{{ range .letters }}{{ if eq . `b` }}{{ continue }}{{ end }}{{ . }}{{ end }}", "ac"),
        ("{{ range .letters }}{{ if eq . `b` }}{{ break }}{{ end }}{{ . }}{{ end }}", "a"),
        ("{{ $last := `` }}{{ range .letters }}{{ $last = . }}{{ end }}{{ $last }}", "c"),
        ("{{ $x := 1 }}{{ if .yes }}{{ $x := 2 }}{{ $x }}{{ end }}{{ $x }}", "21"),
        ('{{ define "t" }}[{{ . }}{{ $ }}]{{ end }}a{{ template "t" .name }}', "a[AdaAda]"),
        ('{{ block "b" .deep }}{{ .one.two }}{{ end }}', "three"),
        ('{{ template "t" }}{{ define "t" }}{{ . }}{{ end }}', "<no value>"),
    ],
)
def test_control(source: str, expected: str) -> None:
    assert go(source) == expected


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("and 1 0 2", "0"),
        ("and .letters .name", "Ada"),
        ("or .zero .name .none.x", "Ada"),
        ("not .zero", "true"),
        ("eq .name `x` `Ada`", "true"),
        ("ne .zero 0", "false"),
        ("eq .missing `x`", "false"),
        ("eq .none .letters", "false"),
        ("ne .letters nil", "true"),
        ("eq .name `Ada` 1", "true"),
        ("html (not .zero) .none", "true&lt;no value&gt;"),
        ("lt 1 2", "true"),
        ("le `b` `a`", "false"),
        ("gt 2.5 1", "true"),
        ("ge 2 2", "true"),
        ("len .letters", "3"),
        ("len `é`", "2"),
        ("index .letters 1", "b"),
        ("index .map `b`", "2"),
        ("slice .letters 1", "[b c]"),
        ("slice .letters 0 2 | len", "2"),
        ("slice `hello` 1 3", "el"),
        ("print 1 2 `a` 3", "1 2a3"),
        ("println `a` 1", "a 1\n"),
        ("printf `%s is %d, %5.1f%% %v %q` .name 3 2.25 .yes .name", 'Ada is 3,   2.2% true "Ada"'),
        ("printf `%-4s|%4s|%04d|%x` `ab` `cd` 7 255", "ab  |  cd|0007|ff"),
        (".name | printf `%s-%s` `x` | len", "5"),
        ("html `<a&\"'>`", "&lt;a&amp;&#34;&#39;&gt;"),
        ("json .map", '{"b":2,"a":1.5}'),
        ("json `<é>`", '"\\u003cé\\u003e"'),
        ("currentDate", date.today().isoformat()),
        ("eq currentDate currentDate", "true"),
        ("contains `d` .name", "true"),
        ("hasPrefix `A` .name", "true"),
        ("hasSuffix `A` .name", "false"),
        ("join `, ` .letters", "a, b, c"),
        ("trim ` a ` | upper", "A"),
        ("lower .name", "ada"),
        ("and (eq .name `Ada`) (not (eq .zero 1))", "true"),
    ],
)  # fmt: skip
def test_functions(source: str, expected: str) -> None:
    assert go(f"{{{{ {source} }}}}") == expected


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("{{ if .x }}", "the template ends without {{ end }}"),
        ("a\n\n{{ nothing .x }}", 'line 3: the function "nothing" is not known'),
        ("{{ call .x }}", 'the function "call" is not known'),
        ("{{ $x }}", r"the variable \$x is not defined"),
        ("{{ if .x }}{{ $y := 1 }}{{ end }}{{ $y }}", r"the variable \$y is not defined"),
        ("{{ .x 3 }}", "only a function takes arguments"),
        ("{{ 1 | .x }}", "only a function takes arguments"),
        ("{{ end }}", "unexpected {{ end }}"),
        ("{{ if .x }}{{ else }}{{ else }}{{ end }}", "unexpected {{ else }}"),
        ("{{ break }}", "outside of a range"),
        ("{{ eq 1 }}", 'the function "eq" takes 2 or more, not 1'),
        ("{{ not 1 2 }}", 'the function "not" takes 1, not 2'),
        ("{{ (1 }}", "a parenthesis is not closed"),
        ("{{ 1) }}", r"unexpected '\)'"),
        ('{{ template "x" }}', 'template "x" is not defined'),
        ("{{ .", "an action without }}"),
        ("{{/* x }}", r"a comment ends with"),
        ("{{ 3abc }}", "unexpected '3abc"),
        ("{{ | }}", "a value is missing"),
        ("{{ nil }}", "nil alone is not a value"),
        ("{{ }}", "a value is missing"),
        ("{{ if .a }}" * 60, "nests more than 50 deep"),
        ("{{ " + "(" * 60 + "}}", "nests more than 50 deep"),
    ],
)
def test_what_cannot_be_parsed(source: str, what: str) -> None:
    with pytest.raises(GoTemplateError, match=what):
        parse(source)
    with pytest.raises(ConfigError, match="written in Go's language, cannot be compiled"):
        GoTemplate(source)


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("\n{{ .name.x }}", "line 2: a text has no field .x"),
        ("{{ .none.x }}", "nil has no field .x"),
        ("{{ index .letters 3 }}", "3 is not a place from 0 to 2"),
        ("{{ slice .letters 2 1 }}", "2 is not a place from 0 to 1"),
        ("{{ len 3 }}", "a number has no length"),
        ("{{ eq .letters .letters }}", "a list cannot be compared"),
        ("{{ eq 1 `1` }}", "a number cannot be compared with a text"),
        ("{{ lt .yes .yes }}", "a boolean has no order"),
        ("{{ range .name }}{{ end }}", "range cannot go over a text"),
        ("{{ range $i, $e := 3 }}{{ end }}", "a range over a number has one variable"),
        ("{{ printf `%d` .name }}", "cannot write a text by %d"),
        ("{{ printf `%s` }}", "has no value for %s"),
        ("{{ printf `a` 1 }}", "1 values too many"),
        ("{{ printf `%99999d` 1 }}", "cannot write a number by"),
        ("{{ upper 3 }}", "a text is needed, not a number"),
    ],
)
def test_what_fails_in_a_run(source: str, what: str) -> None:
    with pytest.raises(GoTemplateError, match=what):
        go(source)


@pytest.mark.parametrize(
    ("source", "what"),
    [
        ("{{ range 2000000 }}{{ end }}", "looped more than|ran longer"),
        ("{{ range 3000 }}{{ range 3000 }}{{ end }}{{ end }}", "looped more than|ran longer"),
        ('{{ define "t" }}{{ template "t" }}{{ end }}{{ template "t" }}', "call each other"),
        ("{{ range 9000 }}{{ printf `%9999s` `a` }}{{ end }}", "builds more than"),
        ("{{ $x := `aaaa` }}{{ range 40 }}{{ $x = print $x $x }}{{ end }}", "builds more than"),
    ],
)  # fmt: skip
def test_runs_are_bounded(source: str, what: str) -> None:
    with pytest.raises(budget.TemplateLimit, match=what):
        go(source)


def test_tools_are_written_as_ollama_writes_them() -> None:
    dot = {"Tools": JsonList([Record(TOOL, TOOL_OF_A_CLIENT)])}
    whole = (
        '{"type":"function","function":{"name":"weather","parameters":{"type":"object",'
        '"required":["city"],"properties":{"city":{"type":"string","description":'
        '"where \\u003cit\\u003e is"},"unit":{"type":["string","null"],"enum":["C","F"],'
        '"default":"C"},"days":{"type":"array","items":{"type":"integer"}}}},"strict":true}}'
    )
    assert go("{{ .Tools }}", dot) == go("{{ json .Tools }}", dot) == f"[{whole}]"
    assert go("{{ range .Tools }}{{ . }}{{ end }}", dot) == whole
    assert go("{{ (index .Tools 0).Function.Description }}", dot) == ""
    lines = (
        "{{ range $n, $p := (index .Tools 0).Function.Parameters.Properties }}"
        "{{ $n }}: {{ toTypeScriptType $p }} {{ $p.Description }};{{ end }}"
    )
    assert go(lines, dot) == "city: string where <it> is;days: any[] ;unit: string | null ;"
    with pytest.raises(GoTemplateError, match=r"no field \.Title here, only Name, Description"):
        go("{{ range .Tools }}{{ .Function.Title }}{{ end }}", dot)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("{{ .Prompt }}", True),
        ("{{- range .Messages }}{{ .Role }}{{ end }}", True),
        ("{{ if .System }}a{{ end }}", True),
        ("{{ $x }}", True),
        ("{{- /* a comment */ -}}", True),
        ("{{ json .Tools }}", True),
        ('{{ template "a" }}', True),
        ("{{ messages[0].content }}", False),
        ("{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}", False),
        ("{{- messages | length }}", False),
        ("{# {{ .Prompt }} #}", False),
        ("no actions", False),
        ("{{ raise_exception('a') }}", False),
    ],
)
def test_the_language_is_seen_in_the_text(source: str, expected: bool) -> None:
    assert is_go(source) == expected


def test_a_failing_template_is_the_requests_error() -> None:
    template = GoTemplate("{{ range .Messages }}{{ index .Content 9 }}{{ end }}")
    with pytest.raises(RequestError, match="the chat template failed: GoTemplateError: line 1: 9"):
        template.render(
            {
                "messages": [{"role": "user", "content": "hi"}],
                "tools": None,
                "add_generation_prompt": True,
                "continue_final_message": False,
            }
        )
