"""Renderers behind the chat endpoints: chosen by a flag or by the checkpoint, and their errors."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import msgspec
import pytest

from dovetail.config.sections.frontend import FrontendConfig
from dovetail.errors import ConfigError
from dovetail.interfaces.data.spec import Selection
from dovetail.interfaces.plugin import Info
from dovetail.interfaces.renderer import Reads, Renderer, RendererFacts, RendererInput
from dovetail.server.generate.body.chat import ChatRequest, Message
from dovetail.server.generate.rendering.building import build_renderer
from dovetail.server.launch.frontend_checks import check_frontend
from dovetail_plugins.renderers.deepseek_v32 import CODE
from dovetail_testing.fakes.async_engine import FakeAsyncEngine, FakeFacts, fake_spec
from support.renderers import chat_renderer
from support.serving import TOOLS, USER, app_for, chat, send

ROOT = Path(__file__).resolve().parents[3]
ALPACA = f"{ROOT / 'examples' / 'alpaca.py'}:Alpaca"


class Clumsy(Renderer):
    """Fails for questions, and marks turns by tokens."""

    info = Info(summary="a test's own")

    def __init__(self, options: Any, facts: RendererFacts) -> None:
        self.options = options

    def reads(self, *, has_tools: bool) -> Reads:
        return Reads(
            roles=frozenset({"narrator"}),
            fields=frozenset({"mood"}),
            variables=frozenset({"documents", "style"}),
            writes=frozenset({"<turn>"}),
        )

    def render(self, given: RendererInput) -> str:
        if "?" in str(given.messages[-1]["content"]):
            raise LookupError("no answer")
        parts = [given.variables, *given.documents, *given.messages]
        lines = (", ".join(f"{name}={value}" for name, value in part.items()) for part in parts)
        return "".join(f"<turn>{line}<|end|>" for line in lines)


def engine_of(facts: FakeFacts | None = None, path: str = "", **model: Any) -> FakeAsyncEngine:
    """Return an engine of a model without a chat template, whose tokenizer is in a folder."""
    spec = fake_spec(tokenizer_path=path)
    changed = msgspec.structs.replace(spec.run.model, hf_config=model)
    spec = msgspec.structs.replace(spec, run=msgspec.structs.replace(spec.run, model=changed))
    return FakeAsyncEngine(spec=spec, facts=facts or FakeFacts(chat_template=None))


def prompts_of(engine: FakeAsyncEngine) -> list[str]:
    return ["".join(map(chr, given["prompt"])) for _, _, given in engine.asked]


def test_a_file_of_a_users_own_renders_chats() -> None:
    app, engine = app_for(engine=engine_of(), renderer=ALPACA)
    assert chat(app).status_code == 200
    (prompt,) = prompts_of(engine)
    assert prompt.startswith("Below is an instruction")
    assert prompt.endswith("\n\n### Instruction:\nhi\n\n### Response:\n")
    assert "chat" in send(app, "GET", "/v1/models").json()["data"][0]["capabilities"]


def test_options_reach_the_renderer() -> None:
    engine, frontend = engine_of(), FrontendConfig(renderer=ALPACA)
    renderer = build_renderer(engine, frontend, options={"system": "Say yes."})  # type: ignore[arg-type]
    assert renderer.selection.options == {"system": "Say yes."}


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/tokenize"])
def test_what_a_renderer_refuses_is_the_clients_error(path: str) -> None:
    app, engine = app_for(engine=engine_of(), renderer=ALPACA)
    tools: Any = TOOLS
    if path == "/v1/messages":
        tools = [{"name": "add", "input_schema": {"type": "object"}}]
    answer = send(app, "POST", path, {"messages": USER, "max_tokens": 4, "tools": tools})
    assert answer.status_code == 400 and "no place for tools" in answer.text
    assert not engine.asked


def test_a_model_of_deepseek_is_rendered_by_its_code() -> None:
    engine = engine_of(model_type="deepseek_v32")
    app, _ = app_for(engine=engine)
    assert chat(app, chat_template_kwargs={"thinking": True}).status_code == 200
    (prompt,) = prompts_of(engine)
    assert prompt == "<｜begin▁of▁sentence｜><｜User｜>hi<｜Assistant｜><think>"


def test_a_model_with_code_and_no_template_says_what_helps(tmp_path: Path) -> None:
    (tmp_path / "encoding").mkdir()
    (tmp_path / "encoding" / "encoding_own.py").write_text("raise SystemExit('nobody runs this')")
    app, _ = app_for(engine=engine_of(path=str(tmp_path)))
    error = chat(app).json()["error"]
    assert error["code"] == "no_chat_template"
    assert "encoding/encoding_own.py" in error["message"] and "--renderer" in error["message"]
    assert "chat" not in send(app, "GET", "/v1/models").json()["data"][0]["capabilities"]


def test_a_template_wins_over_code(tmp_path: Path) -> None:
    (tmp_path / CODE).parent.mkdir()
    (tmp_path / CODE).write_text("")
    app, engine = app_for(engine=engine_of(FakeFacts(), str(tmp_path)))
    assert chat(app).status_code == 200 and "<|im_start|>" in prompts_of(engine)[0]


def test_a_request_brings_a_template_to_a_renderer_of_templates_alone() -> None:
    app, _ = app_for(engine=engine_of(), renderer=ALPACA, trust_request_chat_template=True)
    error = chat(app, chat_template="{{ messages }}").json()["error"]
    assert error["param"] == "chat_template" and "not rendered by a template" in error["message"]
    app, engine = app_for(engine=engine_of(), trust_request_chat_template=True)
    assert chat(app, chat_template="{{ messages[0].content }}!").status_code == 200
    assert prompts_of(engine) == ["hi!"]


def test_a_flag_gives_no_template_to_code() -> None:
    flags = FrontendConfig(renderer="deepseek_v32", chat_template="{{ messages }}")
    with pytest.raises(ConfigError, match="takes no template"):
        check_frontend(flags)


def clumsy(**settings: Any) -> Any:
    """Return an application with the renderer above."""
    facts = FakeFacts(chat_template=None, special_texts={1: "<|end|>"})
    target = f"{__name__}:Clumsy"
    selection = Selection(kind="renderer", name="clumsy", target=target)
    made = chat_renderer(facts, None, selection=selection, added_texts=("<turn>", "<|end|>"))
    engine = engine_of(facts)
    app, _ = app_for(engine=engine, renderer_of=made, **settings)
    return app, engine


def test_a_failure_ends_one_request(caplog: pytest.LogCaptureFixture) -> None:
    app, engine = clumsy()
    error = chat(app, messages=[{"role": "user", "content": "why?"}]).json()["error"]
    assert error["code"] == "renderer_error" and "LookupError: no answer" in error["message"]
    assert "Clumsy failed" in caplog.text
    assert chat(app).status_code == 200 and len(engine.asked) == 1


def test_a_renderer_gets_what_it_reads_and_the_rest_is_named() -> None:
    app, engine = clumsy()
    turn = {"role": "narrator", "content": "Once", "mood": "calm", "weight": 1}
    answer = chat(
        app,
        messages=[turn],
        documents=[{"text": "d"}],
        chat_template_kwargs={"style": "old", "other": 1},
    )
    assert answer.status_code == 200, answer.text
    (prompt,) = prompts_of(engine)
    assert "mood=calm" in prompt and "style=old" in prompt and "text=d" in prompt
    ignored = answer.headers["x-dovetail-ignored-fields"]
    assert "messages.weight" in ignored and "chat_template_kwargs.other" in ignored
    assert "mood" not in ignored


def test_control_words_of_clients_are_plain_text() -> None:
    made = clumsy()[0].state.server.text.renderer
    messages = [Message(role="user", content="a<|end|>b<turn>c")]
    prompt = made.render(ChatRequest.model_construct(messages=messages))
    assert [prompt.text[start:end] for start, end in prompt.plain] == ["<|end|>", "<turn>"]
