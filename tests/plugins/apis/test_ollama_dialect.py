"""Ollama's API beyond chats: templates, contexts, what is left out, and facts of the model."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import msgspec
import pytest

from dovetail.errors import RequestError
from dovetail.server.generate.rendering.building import build_renderer
from dovetail_plugins.apis.ollama.keep_alive import seconds_of
from dovetail_plugins.modelfile.reading import read
from dovetail_testing.fakes.async_engine import FakeAsyncEngine, FakeFacts, Script, fake_spec
from support.serving import app_for, send

Turn = dict[str, Any]
IGNORED = "x-dovetail-ignored-fields"
PLAIN = FakeFacts(
    chat_template="{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n"
    "{% endfor %}{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
SYSTEM = "<|im_start|>system\nBe brief.<|im_end|>\n"
GO = "{{ if .System }}S:{{ .System }}\n{{ end }}Q:{{ .Prompt }}\nA:{{ .Response }}\n"
GO_INFILL = "{{ if .Suffix }}<P>{{ .Prompt }}<S>{{ .Suffix }}<M>{{ else }}{{ .Prompt }}{{ end }}"


def engine_of(*pieces: str, **spec: Any) -> FakeAsyncEngine:
    script = Script(pieces=list(pieces) or ["yes"])
    return FakeAsyncEngine(script, facts=PLAIN, spec=fake_spec(**spec))


def generate(app: Any, **fields: Any) -> Any:
    return send(app, "POST", "/api/generate", {"model": "fake", "stream": False, **fields})


def chat(app: Any, messages: list[Turn], **fields: Any) -> Any:
    body = {"model": "fake", "stream": False, "messages": messages, **fields}
    return send(app, "POST", "/api/chat", body)


def prompt_of(engine: FakeAsyncEngine) -> str:
    return engine.tokenizer.decode(engine.asked[-1][2]["prompt"])


def user(text: str) -> Turn:
    return {"role": "user", "content": text}


def test_a_go_template_of_a_request_is_used() -> None:
    app, engine = app_for(engine=engine_of())
    answer = generate(app, prompt="hi", system="Be brief.", template=GO)
    assert answer.status_code == 200, answer.text
    assert prompt_of(engine) == "S:Be brief.\nQ:hi\nA:"
    assert generate(app, prompt="hi", template="{{ range .Messages }}{{ .Content }}!{{ end }}")
    assert prompt_of(engine) == "hi!"


def test_a_jinja_template_of_a_request_needs_the_flag() -> None:
    template = "[{{ messages[0].content }}]"
    app, engine = app_for(engine=engine_of())
    assert "--trust-request-chat-template" in generate(app, prompt="a", template=template).text
    app, engine = app_for(engine=engine_of(), trust_request_chat_template=True)
    assert generate(app, prompt="hi", template=template).status_code == 200
    assert prompt_of(engine) == "[hi]"


def test_a_go_template_may_have_a_place_for_a_suffix() -> None:
    app, engine = app_for(engine=engine_of())
    assert generate(app, prompt="a", suffix="b", template=GO_INFILL).status_code == 200
    assert prompt_of(engine) == "<P>a<S>b<M>"
    app, engine = app_for(engine=engine_of(), chat_template=GO_INFILL)
    assert generate(app, prompt="a", suffix="b").status_code == 200
    assert prompt_of(engine) == "<P>a<S>b<M>"
    assert generate(app, prompt="a").status_code == 200
    assert prompt_of(engine) == "a"


@pytest.mark.parametrize("template", [None, GO])
@pytest.mark.parametrize("system", [None, "Be brief."])
def test_a_context_carries_a_conversation_on(system: str | None, template: str | None) -> None:
    app, engine = app_for(engine=engine_of("Hel", "lo"))
    fields = {"system": system, "template": template}
    first = generate(app, prompt="hi", **fields).json()
    assert first["context"] == [*map(ord, prompt_of(engine) + "Hello")]
    second = generate(app, prompt="more", context=first["context"], **fields).json()
    carried_on = prompt_of(engine)
    turns = [user("hi"), {"role": "assistant", "content": "Hello"}, user("more")]
    first_turns = [{"role": "system", "content": system}] if system else []
    app, engine = app_for(engine=engine_of(), chat_template=template)
    assert chat(app, [*first_turns, *turns]).status_code == 200
    assert carried_on == prompt_of(engine)
    assert second["context"] == [*map(ord, carried_on + "Hello")]


def test_a_new_system_message_is_rendered_after_a_context() -> None:
    app, engine = app_for(engine=engine_of())
    generate(app, prompt="more", context=[*map(ord, "before")], system="Now be long.")
    assert prompt_of(engine).startswith("before<|im_end|>\n<|im_start|>system\nNow be long.")


def test_an_answer_with_a_context_has_what_is_left_of_the_models() -> None:
    app, engine = app_for(engine=engine_of(max_model_tokens=400))
    generate(app, prompt="more", context=[97] * 200)
    params, prompt = engine.asked[-1][1], engine.asked[-1][2]["prompt"]
    assert params.max_tokens == 400 - len(prompt)
    generate(app, prompt="more", context=[97] * 200, options={"num_predict": 3})
    assert engine.asked[-1][1].max_tokens == 3


def test_there_is_no_context_of_a_raw_prompt() -> None:
    app, _ = app_for(engine=engine_of())
    assert "context" not in generate(app, prompt="hi", raw=True).json()
    assert "context" not in chat(app, [user("hi")]).json()


def test_the_last_line_of_a_stream_has_the_context() -> None:
    app, engine = app_for(engine=engine_of("a", "b"))
    answer = generate(app, prompt="hi", stream=True)
    *others, last = map(msgspec.json.decode, answer.text.splitlines())
    assert last["context"] == [*map(ord, prompt_of(engine) + "ab")]
    assert not any("context" in line for line in others)


def test_truncate_leaves_the_oldest_turns_out() -> None:
    app, engine = app_for(engine=engine_of(max_model_tokens=300))
    turns = [{"role": "system", "content": "Be brief."}]
    for i in range(9):
        turns += [user(f"question {i}"), {"role": "assistant", "content": f"answer {i}"}]
    turns.append(user("the last"))
    assert "has 8" in chat(app, turns).json()["error"]
    assert chat(app, turns, truncate=False).status_code == 400
    assert chat(app, turns, truncate=True, options={"num_predict": 5}).status_code == 200
    prompt = prompt_of(engine)
    assert prompt.startswith(
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nquestion 7"
    )
    assert prompt.endswith("the last<|im_end|>\n<|im_start|>assistant\n")
    assert len(prompt) <= 295 < len(prompt) + len("<|im_start|>user\nquestion 6<|im_end|>\n") * 2
    assert chat(app, turns[:3], truncate=True).status_code == 200
    assert "question 0" in prompt_of(engine)


@pytest.mark.parametrize("path", ["chat", "generate"])
def test_truncate_cuts_the_start_of_one_long_turn(path: str) -> None:
    app, engine = app_for(engine=engine_of(max_model_tokens=100))
    text = "a" * 500 + "END"
    fields: dict[str, Any] = {"truncate": True, "options": {"num_predict": 10}}
    answer = chat(app, [user(text)], **fields)
    if path == "generate":
        answer = generate(app, prompt=text, **fields)
    assert answer.status_code == 200, answer.text
    assert prompt_of(engine).endswith("aEND<|im_end|>\n<|im_start|>assistant\n")
    assert len(prompt_of(engine)) == 90


def test_shift_is_named_as_ignored() -> None:
    app, _ = app_for(engine=engine_of())
    assert chat(app, [user("hi")], shift=True).headers[IGNORED] == "shift"
    assert IGNORED not in chat(app, [user("hi")], shift=False).headers


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        (0, 0), (300, 300), (-1, math.inf), (0.5, 0.5), ("0", 0), ("0s", 0), ("5m", 300),
        ("1h30m", 5400), ("1.5s", 1.5), ("100ms", 0.1), ("-1m", math.inf), ("-1", None),
        ("+2s", 2), ("300", None), ("5 m", None), ("", None), ("m", None), ("1d", None),
    ],
)  # fmt: skip
def test_durations(text: float | str, seconds: float | None) -> None:
    if seconds is None:
        with pytest.raises(RequestError, match="keep_alive"):
            seconds_of(text)
    else:
        assert seconds_of(text) == pytest.approx(seconds)


@pytest.mark.parametrize("value", [0, "0", "0s", "0m0s"])
def test_a_server_of_one_model_does_not_unload_it(value: float | str) -> None:
    app, _ = app_for(engine=engine_of())
    assert "the model stays loaded" in generate(app, keep_alive=value).json()["error"]
    assert generate(app, keep_alive="5m").json()["done_reason"] == "load"


def test_show_has_the_settings_as_a_modelfile(tmp_path: Path) -> None:
    (tmp_path / "LICENSE").write_text("Do what\nyou want.")
    spec = fake_spec(default_sampling={"temperature": 0.5, "max_tokens": 9, "stop": ("a", "b")})
    changed = msgspec.structs.replace(spec.run.model, path=str(tmp_path))
    spec = msgspec.structs.replace(spec, run=msgspec.structs.replace(spec.run, model=changed))
    engine = FakeAsyncEngine(Script(), facts=PLAIN, spec=spec)
    app, _ = app_for(engine=engine)
    shown = send(app, "POST", "/api/show", {"model": "fake"}).json()
    assert shown["parameters"] == 'temperature 0.5\nnum_predict 9\nstop "a"\nstop "b"'
    assert shown["license"] == "Do what\nyou want."
    modelfile = read(shown["modelfile"])
    assert (modelfile.base, modelfile.template) == ("fake", PLAIN.chat_template)
    assert modelfile.parameters == {"temperature": 0.5, "num_predict": 9, "stop": ("a", "b")}
    assert modelfile.licenses == ("Do what\nyou want.",)
    assert shown["model_info"]["tokenizer.ggml.tokens"] is None
    whole = send(app, "POST", "/api/show", {"model": "fake", "verbose": True}).json()
    assert whole["model_info"]["tokenizer.ggml.tokens"][97] == "a"


def test_show_has_the_default_messages() -> None:
    from dovetail.config.sections.frontend import FrontendConfig

    engine = engine_of()
    options = {"system": "Be brief.", "messages": [user("hi")]}
    renderer = build_renderer(engine, FrontendConfig(), options=options)  # type: ignore[arg-type]
    app, _ = app_for(engine=engine, renderer_of=renderer)
    shown = send(app, "POST", "/api/show", {"model": "fake"}).json()
    assert (shown["system"], shown["messages"]) == ("Be brief.", [user("hi")])
    assert chat(app, [user("more")]).status_code == 200
    assert prompt_of(engine).startswith(
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nhi"
    )


def test_programs_see_that_the_server_runs() -> None:
    app, _ = app_for(engine=engine_of())
    assert send(app, "GET", "/").text == "Ollama is running"
    assert send(app, "HEAD", "/").status_code == 200
