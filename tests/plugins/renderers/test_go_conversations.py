"""Conversations by Go templates: as Ollama renders them, and as the same model's Jinja template."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail import registry
from dovetail.errors import ConfigError, RequestError
from dovetail.server.generate.body.chat import ChatRequest
from dovetail.server.generate.rendering.chat import ChatRenderer
from dovetail.server.generate.rendering.switches import Switch, switch
from dovetail_testing.fakes.async_engine import FakeFacts
from support.renderers import chat_renderer

Turn = dict[str, Any]
SYSTEM = {"role": "system", "content": "Be brief."}
HI = {"role": "user", "content": "hi"}
YES = {"role": "assistant", "content": "yes"}
MORE = {"role": "user", "content": "more"}
CHATS = [[HI], [SYSTEM, HI], [HI, YES, MORE], [SYSTEM, HI, YES, MORE]]
BOS = FakeFacts(
    chat_template="{{ bos_token }}", special_tokens={"bos_token": "<s>", "eos_token": "</s>"}
)

CHATML_JINJA = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
CHATML = (
    "{{- range .Messages }}<|im_start|>{{ .Role }}\n{{ .Content }}<|im_end|>\n"
    "{{ end }}<|im_start|>assistant\n"
)
OLD_CHATML = (
    "{{ if .System }}<|im_start|>system\n{{ .System }}<|im_end|>\n{{ end }}"
    "{{ if .Prompt }}<|im_start|>user\n{{ .Prompt }}<|im_end|>\n{{ end }}"
    "<|im_start|>assistant\n{{ .Response }}<|im_end|>\n"
)
LLAMA3_JINJA = (
    "{{ bos_token }}{% for m in messages %}<|start_header_id|>{{ m.role }}<|end_header_id|>\n\n"
    "{{ m.content | trim }}<|eot_id|>{% endfor %}"
    "{% if add_generation_prompt %}<|start_header_id|>assistant<|end_header_id|>\n\n{% endif %}"
)
LLAMA3 = (
    "{{- range .Messages }}<|start_header_id|>{{ .Role }}<|end_header_id|>\n\n"
    "{{ .Content }}<|eot_id|>{{ end }}<|start_header_id|>assistant<|end_header_id|>\n\n"
)
OLD_LLAMA3 = (
    "{{ if .System }}<|start_header_id|>system<|end_header_id|>\n\n{{ .System }}<|eot_id|>{{ end }}"
    "{{ if .Prompt }}<|start_header_id|>user<|end_header_id|>\n\n{{ .Prompt }}<|eot_id|>{{ end }}"
    "<|start_header_id|>assistant<|end_header_id|>\n\n{{ .Response }}<|eot_id|>"
)
MISTRAL_JINJA = (
    "{% if messages[0].role == 'system' %}{% set system = messages[0].content + '\n\n' %}"
    "{% set messages = messages[1:] %}{% else %}{% set system = '' %}{% endif %}{{ bos_token }}"
    "{% for m in messages %}{% if m.role == 'user' %}[INST] "
    "{{ system if loop.last else '' }}{{ m.content }}[/INST]"
    "{% else %} {{ m.content }}</s>{% endif %}{% endfor %}"
)
MISTRAL = (
    "{{- range $index, $_ := .Messages }}{{- if eq .Role `user` }}[INST] "
    "{{ if and (eq (len (slice $.Messages $index)) 1) $.System }}{{ $.System }}\n\n{{ end }}"
    "{{ .Content }}[/INST]{{- else if eq .Role `assistant` }} {{ .Content }}</s>"
    "{{- end }}{{- end }}"
)
GEMMA_JINJA = (
    "{{ bos_token }}{% if messages[0].role == 'system' %}{% set first = messages[0].content + "
    "'\n\n' %}{% set messages = messages[1:] %}{% else %}{% set first = '' %}{% endif %}"
    "{% for m in messages %}<start_of_turn>{{ 'model' if m.role == 'assistant' else m.role }}\n"
    "{{ first if loop.first else '' }}{{ m.content | trim }}<end_of_turn>\n{% endfor %}"
    "{% if add_generation_prompt %}<start_of_turn>model\n{% endif %}"
)
GEMMA = (
    "{{- $first := true }}{{- range .Messages }}{{- if ne .Role `system` }}<start_of_turn>"
    "{{ if eq .Role `assistant` }}model{{ else }}{{ .Role }}{{ end }}\n"
    "{{ if and $first $.System }}{{ $.System }}\n\n{{ end }}{{ .Content }}<end_of_turn>\n"
    "{{- /* once */ -}}{{ $first = false }}\n{{ end }}{{- end }}<start_of_turn>model\n"
)


def text_of(
    template: str,
    messages: list[Turn],
    facts: FakeFacts | None = None,
    *,
    switches: tuple[Switch, ...] = (),
    options: dict[str, Any] | None = None,
    **fields: Any,
) -> str:
    return renderer_of(template, facts, options).render(body(messages, **fields), switches).text


def renderer_of(
    template: str, facts: FakeFacts | None = None, options: dict[str, Any] | None = None
) -> ChatRenderer:
    selection = registry.choose("renderer", "template", options=options or {})
    return chat_renderer(facts, template, selection=selection)


def body(messages: list[Turn], **fields: Any) -> ChatRequest:
    return ChatRequest.model_validate({"messages": messages, **fields})


@pytest.mark.parametrize("messages", CHATS)
@pytest.mark.parametrize(
    ("jinja", "go", "facts"),
    [
        (CHATML_JINJA, CHATML, FakeFacts(chat_template=CHATML_JINJA)),
        (CHATML_JINJA, OLD_CHATML, FakeFacts(chat_template=CHATML_JINJA)),
        (LLAMA3_JINJA, LLAMA3, BOS),
        (LLAMA3_JINJA, OLD_LLAMA3, BOS),
        (MISTRAL_JINJA, MISTRAL, BOS),
        (GEMMA_JINJA, GEMMA, BOS),
    ],
    ids=["chatml", "chatml_old", "llama3", "llama3_old", "mistral", "gemma"],
)
def test_both_languages_render_the_same(
    jinja: str, go: str, facts: FakeFacts, messages: list[Turn]
) -> None:
    wanted = text_of(jinja, messages, facts)
    assert text_of(go, messages, facts) == wanted
    continued = {"continue_final_message": True, "add_generation_prompt": False}
    turns = [*messages, {"role": "assistant", "content": "It is"}]
    if go not in (MISTRAL,):
        assert text_of(go, turns, facts, **continued) == text_of(jinja, turns, facts, **continued)


def test_a_template_without_a_response_gets_one() -> None:
    assert text_of("{{ .Prompt }}", [HI, YES, MORE]) == "hiyesmore"
    assert text_of("Q: {{ .Prompt }}\nA: ", [SYSTEM, HI]) == "Q: hi\nA: "


def test_what_follows_the_response_is_left_out_of_the_last_exchange_alone() -> None:
    template = "{{ if .Prompt }}<{{ .Prompt }}>{{ end }}{{ if true }}[{{ .Response }}]{{ end }}!"
    assert text_of(template, [HI, YES, MORE]) == "<hi>[yes]!<more>["


def test_texts_of_one_role_are_merged_but_not_calls_and_results() -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"b":1.50}'}}
    template = (
        "{{ .System }}|{{ range .Messages }}<{{ .Role }} {{ .ToolName }}>"
        "{{ .Thinking }}{{ .Content }}{{ range .ToolCalls }}"
        "{{ .Function.Name }}{{ .Function.Arguments }}{{ .Function.Index }}"
        "{{ end }}{{ end }}{{ if .Tools }}{{ end }}"
    )
    turns = [
        SYSTEM, HI, MORE, YES,
        {"role": "assistant", "content": "", "reasoning_content": "hm", "tool_calls": [call, call]},
        {"role": "tool", "tool_call_id": "c1", "content": "1"},
        {"role": "tool", "tool_call_id": "c1", "content": "2"},
        {"role": "system", "content": "Now."},
    ]  # fmt: skip
    assert text_of(template, turns) == (
        "Be brief.\n\nNow.|<system >Be brief.<user >hi\n\nmore<assistant >yes"
        '<assistant >hmadd{"b":1.5}0add{"b":1.5}1<tool add>1<tool add>2<system >Now.'
    )


def test_thinking() -> None:
    template = "{{ .IsThinkSet }} {{ .Think }} {{ .ThinkLevel }}{{ range .Messages }}{{ end }}"
    assert text_of(template, [HI]) == "false false "
    assert text_of(template, [HI], switches=(switch("think", True),)) == "true true "
    assert text_of(template, [HI], switches=(switch("think", False),)) == "true false "
    assert text_of(template, [HI], reasoning_effort="high") == "true true high"
    rendered = renderer_of(CHATML).render(body([HI]), [switch("think", True)])
    assert rendered.unused == ("think",)


def test_what_a_template_has_no_place_for_is_refused() -> None:
    tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
    with pytest.raises(RequestError, match=r"it has no \.Tools"):
        text_of(CHATML, [HI], tools=[tool])
    with pytest.raises(RequestError, match="always opens the model's turn"):
        text_of(CHATML, [HI], add_generation_prompt=False)
    with pytest.raises(RequestError, match="is not a role of this model's chat template"):
        text_of(CHATML, [{"role": "narrator", "content": "Once"}])
    known = "{{ range .Messages }}{{ if eq .Role `narrator` }}{{ .Content }}{{ end }}{{ end }}"
    assert text_of(known, [{"role": "narrator", "content": "Once"}]) == "Once"


def test_a_suffix_has_its_own_format() -> None:
    template = "{{ if .Suffix }}<P>{{ .Prompt }}<S>{{ .Suffix }}{{ else }}{{ .Prompt }}{{ end }}"
    between = {"chat_template_kwargs": {"suffix": "end"}}
    assert text_of(template, [HI], **between) == "<P>hi<S>end"
    assert text_of(template, [HI]) == "hi"


def test_control_tokens_of_clients_are_plain_text() -> None:
    typed = "a<|im_end|>b"
    for template in (CHATML, OLD_CHATML):
        renderer = chat_renderer(
            FakeFacts(chat_template=None, special_texts={0: "<|im_end|>"}), template
        )
        rendered = renderer.render(body([{"role": "user", "content": typed}, YES, HI]))
        at = rendered.text.index("<|im_end|>")
        assert rendered.plain == ((at, at + len("<|im_end|>")),)


@pytest.mark.parametrize("template", [CHATML, OLD_CHATML, CHATML_JINJA])
def test_conversations_begin_with_the_default_messages(template: str) -> None:
    options = {"system": "Be brief.", "messages": [HI, YES]}
    assert text_of(template, [MORE], options=options) == text_of(template, [SYSTEM, HI, YES, MORE])
    other = {"role": "system", "content": "Be long."}
    wanted = text_of(template, [other, HI, YES, MORE])
    assert text_of(template, [other, MORE], options=options) == wanted
    rendered = renderer_of(template, options=options).render(body([HI]))
    assert rendered.tail == "<|im_end|>\n<|im_start|>assistant\n"


def test_default_messages_have_the_form_that_the_template_reads() -> None:
    parts = (
        "{% for m in messages %}{{ m.role }}:{% for p in m.content %}{{ p.text }}{% endfor %}"
        "{% endfor %}"
    )
    options = {"system": "Be brief.", "messages": [HI, YES]}
    wanted = "system:Be brief.user:hiassistant:yesuser:more"
    assert text_of(parts, [MORE], options=options) == wanted
    both = "{% if messages[0].content is string %}{% endif %}" + parts
    as_parts = {"role": "user", "content": [{"type": "text", "text": "more"}]}
    assert text_of(both, [as_parts], options=options) == wanted


def test_a_developer_message_counts_as_a_system_message() -> None:
    template = "{% for m in messages %}{{ m.role }}:{{ m.content }} {% endfor %}"
    developer = {"role": "developer", "content": "Be long."}
    options = {"system": "Be brief."}
    assert text_of(template, [developer, HI], options=options) == "system:Be long. user:hi "
    read = template + "{% if messages[0].role == 'developer' %}{% endif %}"
    assert text_of(read, [developer, HI], options=options) == "developer:Be long. user:hi "


@pytest.mark.parametrize("message", [{"role": "user"}, {"role": "tool", "content": "a"}])
def test_default_messages_are_checked(message: Turn) -> None:
    with pytest.raises(ConfigError, match="is not a message"):
        renderer_of(CHATML, options={"messages": [message]})


def test_a_request_may_bring_a_template_in_either_language() -> None:
    renderer = renderer_of(CHATML)
    assert renderer.render(body([HI], chat_template="<{{ .Prompt }}>")).text == "<hi>"
    assert renderer.render(body([HI], chat_template="<{{ messages[0].content }}>")).text == "<hi>"
    with pytest.raises(RequestError, match='the function "nothing" is not known'):
        renderer.render(body([HI], chat_template="{{ nothing .Prompt }}"))
