"""Media in messages, whichever dialect they came in: kept in place, listed in order, or refused."""

from __future__ import annotations

from typing import Any

import pytest

from dovetail.errors import RequestError
from dovetail.interfaces.data.media_settings import KINDS, MediaLimit
from dovetail.server.generate.body.chat import ChatRequest
from dovetail.server.generate.rendering.chat import RenderedPrompt
from dovetail.unsupported import sentence
from dovetail_plugins.apis.messages.input import chat_of as chat_of_messages
from dovetail_plugins.apis.messages.protocol import MessagesRequest
from dovetail_plugins.apis.ollama.input import chat_of as chat_of_ollama
from dovetail_plugins.apis.ollama.input import chat_of_prompt
from dovetail_plugins.apis.ollama.protocol import OllamaChatRequest, OllamaGenerateRequest
from dovetail_plugins.apis.responses.input import chat_of as chat_of_responses
from dovetail_plugins.apis.responses.protocol import ResponsesRequest
from dovetail_plugins.apis.responses.turns import messages_of
from dovetail_testing.fakes.async_engine import FakeFacts
from support.renderers import chat_renderer

PARTS = (
    "{% for m in messages %}<{{ m.role }}>{% if m.content is string %}{{ m.content }}{% else %}"
    "{% for p in m.content %}{% if p.type == 'text' %}{{ p.text }}{% else %}[{{ p.type }}]"
    "{% endif %}{% endfor %}{% endif %}{% endfor %}"
)
TEXT = "{% for m in messages %}<{{ m.role }}>{{ m.content }}{% endfor %}"
URL = "https://a.test/a.png"
DATA = "data:image/png;base64,QUJD"
FACTS = FakeFacts()


def render(
    body: ChatRequest,
    kinds: frozenset[str] = frozenset(KINDS),
    template: str = PARTS,
    *,
    interleave_mm_strings: bool = False,
    **limits: int,
) -> RenderedPrompt:
    renderer = chat_renderer(
        FACTS,
        template,
        added_texts=["<image>"],
        media_words={"image": "<image>", "audio": "<|audio|>", "video": "<video>"},
        interleaves_media=interleave_mm_strings,
        media_kinds=kinds,
        media_limits={name: MediaLimit(count=count) for name, count in limits.items()},
    )
    return renderer.render(body)


def chat(*parts: Any) -> ChatRequest:
    return ChatRequest.model_validate({"messages": [{"role": "user", "content": list(parts)}]})


def messages(*blocks: Any) -> ChatRequest:
    body = {"max_tokens": 1, "messages": [{"role": "user", "content": list(blocks)}]}
    return chat_of_messages(MessagesRequest.model_validate(body), can_budget=False)


def responses(*parts: Any) -> ChatRequest:
    return of_items({"role": "user", "content": list(parts)})


def of_items(*given: Any) -> ChatRequest:
    body = ResponsesRequest.model_validate({"input": list(given)})
    return chat_of_responses(body, messages_of(given))


def ollama(text: str, images: list[str]) -> ChatRequest:
    turn = {"role": "user", "content": text, "images": images}
    return chat_of_ollama(OllamaChatRequest.model_validate({"model": "m", "messages": [turn]}))


def text(words: str, kind: str = "text") -> dict[str, str]:
    return {"type": kind, "text": words}


IMAGE = {"type": "image_url", "image_url": {"url": URL}}
SOURCE = {"type": "base64", "media_type": "image/png", "data": "QUJD"}
BODIES = {
    "chat": (
        chat(text("a"), IMAGE, text("b"), {"type": "image_url", "image_url": DATA}),
        "<user>a[image]b[image]",
        [URL, DATA],
    ),
    "responses": (
        responses(text("a", "input_text"), {"type": "input_image", "image_url": URL}),
        "<user>a[image]",
        [URL],
    ),
    "messages": (
        messages(
            {"type": "image", "source": SOURCE},
            text("a"),
            {"type": "image", "source": {"type": "url", "url": URL}},
        ),
        "<user>[image]a[image]",
        [DATA, URL],
    ),
    "messages, in a tool's result": (
        messages({
            "type": "tool_result", "tool_use_id": "t",
            "content": [text("a"), {"type": "image", "source": SOURCE}],
        }),
        "<tool>a[image]",
        [DATA],
    ),
    "responses, in a tool's result": (
        of_items({
            "type": "function_call_output", "call_id": "c",
            "output": [text("a", "input_text"), {"type": "input_image", "image_url": DATA}],
        }),
        "<tool>a[image]",
        [DATA],
    ),
    "ollama": (ollama("a", ["QUJD"]), "<user>[image]a", ["data:;base64,QUJD"]),
    "ollama, one prompt": (
        chat_of_prompt(
            OllamaGenerateRequest(model="m", prompt="a", images=["QUJD"], system="s")
        ),
        "<system>s<user>[image]a",
        ["data:;base64,QUJD"],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", BODIES)
def test_media_stay_in_place_and_are_listed(name: str) -> None:
    body, prompt, urls = BODIES[name]
    found = render(body)
    assert found.text == prompt
    assert [item.url for item in found.media] == urls
    assert {item.kind for item in found.media} == {"image"}


@pytest.mark.parametrize("name", BODIES)
def test_a_model_of_text_refuses_them(name: str) -> None:
    with pytest.raises(RequestError) as caught:
        render(BODIES[name][0], frozenset())
    assert caught.value.what == sentence("media")
    assert caught.value.code == "unsupported_field" and caught.value.status == 400


def test_every_kind_stands_where_its_part_stood() -> None:
    found = render(
        chat(
            {"type": "video_url", "video_url": {"url": URL}},
            {"type": "input_audio", "input_audio": {"data": "QQ==", "format": "wav"}},
            {"type": "audio_embeds", "audio_embeds": "QQ=="},
            {"type": "image_embeds", "image_embeds": "QQ=="},
        )
    )
    assert found.text == "<user>[video][audio][audio][image]"
    assert [item.kind for item in found.media] == ["video", "audio", "audio_embeds", "image_embeds"]
    assert [item.where for item in found.media] == [f"messages[0].content[{i}]" for i in range(4)]


def test_a_kind_that_the_model_does_not_take_is_named() -> None:
    with pytest.raises(RequestError, match="does not take video") as caught:
        render(chat({"type": "video_url", "video_url": {"url": URL}}), frozenset({"image"}))
    assert caught.value.where == "messages[0].content[0]"


def test_more_than_the_limit_are_refused_where_the_first_too_many_stands() -> None:
    render(chat(IMAGE, IMAGE), image=2)
    with pytest.raises(RequestError, match="at most 1 images") as caught:
        render(chat(IMAGE, IMAGE), image=1)
    assert caught.value.where == "messages[0].content[1]"
    with pytest.raises(RequestError, match="at most 0 images"):
        render(chat(IMAGE), image=0)


def test_options_of_media_need_a_model_that_takes_some() -> None:
    body = chat(text("a")).model_copy(update={"media_io_kwargs": {"video": {"num_frames": 2}}})
    with pytest.raises(RequestError) as caught:
        render(body, frozenset())
    assert caught.value.where == "media_io_kwargs"
    assert render(body).text == "<user>a"


@pytest.mark.parametrize(
    ("make", "where"),
    [
        (lambda: render(chat({"type": "file", "file": {"file_id": "f"}})),
         "messages[0].content[0]"),
        (lambda: responses({"type": "input_file", "file_id": "x"}), "input[0].content[0].file_id"),
        (lambda: responses({"type": "input_image", "file_id": "f"}), "input[0].content[0].file_id"),
        (lambda: messages({"type": "image", "source": {"type": "file", "file_id": "f"}}),
         "messages[0].content[0].source"),
        (lambda: messages({"type": "document", "source": SOURCE}), "messages[0].content[0].source"),
        (lambda: ollama("a", [3]), "messages[0].images"),  # type: ignore[list-item]
    ],
)  # fmt: skip
def test_files_and_what_is_no_image_are_refused(make: Any, where: str) -> None:
    with pytest.raises(RequestError) as caught:
        make()
    assert caught.value.where == where and caught.value.status == 400


def test_a_template_of_text_has_the_models_own_words() -> None:
    """Before the text, or with --interleave-mm-strings at their places; a client's spelling of such
    a word stays plain text."""
    sound = {"type": "input_audio", "input_audio": {"data": "QQ==", "format": "wav"}}
    body = chat(text("see <image>"), IMAGE, text("and"), sound)
    found = render(body, template=TEXT)
    assert found.text == "<user><image>\n<|audio|>\nsee <image>\nand"
    assert [item.kind for item in found.media] == ["image", "audio"]
    apart = render(body, template=TEXT, interleave_mm_strings=True)
    assert apart.text == "<user>see <image>\n<image>\nand\n<|audio|>"
    template = TEXT + "{# <image> #}"  # the template writes the word itself
    marked = render(body, template=template, interleave_mm_strings=True)
    assert [marked.text[start:end] for start, end in marked.plain] == ["<image>"]
    assert marked.plain[0][0] == marked.text.index("<image>")
    assert not any("\ufdd0" in prompt.text + prompt.tail for prompt in (found, apart, marked))
