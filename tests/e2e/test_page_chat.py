"""The page's chat with a server that answers as the test wants: a model that is being loaded, and
files that go with a message."""

from __future__ import annotations

import base64
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from support.browser import Page, opened_browser, programs
from support.page_server import FakeServer, fake_server

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
LAST = ".message.assistant:last-child"
HOSTILE = '<img src=x onerror="window.was_run=1">.txt'
PIXEL = base64.b64decode(
    "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mP8z8BQDwAEhQGAhKmMIQAAAABJRU5ErkJggg=="
)
PICTURE = "data:image/png;base64," + base64.b64encode(PIXEL).decode()
SOUND = base64.b64encode(bytes(64)).decode()
GIVE = """
const [way, selector, files] = arguments;
const data = new DataTransfer();
for (const [name, type, content, times] of files) {
  const bytes = Uint8Array.from(atob(content), (one) => one.charCodeAt(0));
  data.items.add(new File(Array(times ?? 1).fill(bytes), name, {type}));
}
const node = document.querySelector(selector);
const facts = {bubbles: true, cancelable: true};
if (way === 'paste') {
  node.dispatchEvent(new ClipboardEvent('paste', {...facts, clipboardData: data}));
} else {
  for (const name of ['dragover', 'drop']) {
    const event = new DragEvent(name, {...facts, dataTransfer: data});
    node.dispatchEvent(event);
    if (!event.defaultPrevented) throw new Error(`${name} would leave the page`);
    if (name === 'dragover') window.was_marked = Boolean(node.closest('.is-dropping'));
  }
}
"""


@pytest.fixture(scope="module")
def server() -> Iterator[FakeServer]:
    programs()
    with fake_server() as made:
        yield made


@pytest.fixture(scope="module")
def browser(server: FakeServer) -> Iterator[Page]:
    with opened_browser(server.url) as page:
        yield page


@pytest.fixture
def page(browser: Page, server: FakeServer) -> Page:
    """Return the chat with a model that sees and hears."""
    can = ["completion", "chat", "vision", "audio"]
    server.models = [{"id": "seer", "state": "loaded", "capabilities": can}]
    server.refused, server.comments, server.pieces = {}, (), 5
    server.hold.clear()
    server.requests.clear()
    browser.size(1280, 860)
    browser.scheme("light")
    browser.open()
    browser.wait(lambda: browser.text("#model-name") == "seer")
    return browser


def send(page: Page, text: str) -> None:
    page.write("#composer-text", text)
    page.click("[aria-label='Send']")


def give(page: Page, way: str, *files: tuple[Any, ...], at: str = "#composer-text") -> None:
    """Paste or drop files: name, type, content, how often the content is repeated."""
    coded = [(one[0], one[1], base64.b64encode(one[2]).decode(), *one[3:]) for one in files]
    page.run(GIVE, way, at, coded)


def last_content(server: FakeServer) -> Any:
    return server.bodies("/v1/chat/completions")[-1]["messages"][-1]["content"]


def answered(page: Page) -> str:
    page.wait(lambda: page.all("[aria-label='Send']") and page.all(f"{LAST} .answer-foot button"))
    return page.text(f"{LAST} > .markdown")


def test_a_model_that_is_being_loaded_is_said_to_be(page: Page, server: FakeServer) -> None:
    name = '"><b>seer'
    server.models[0] |= {"id": name}
    server.comments = ("a comment", '"\\"><b>seer" is being loaded, 8 s')
    page.open()
    page.wait(lambda: page.text("#model-name") == name)
    send(page, "Hello")
    words = f"{name} is being loaded, 8 s so far. The answer begins when it is there."
    page.wait(lambda: page.text(f"{LAST} .cost") == words)
    assert page.run("return document.getElementById('announcer').textContent") == words
    assert page.barriers() == []
    server.hold.set()
    assert answered(page) == "1 2 3 4 5"
    assert "being loaded" not in page.text(LAST)


def test_a_stream_that_waits_for_its_model_can_be_stopped(page: Page, server: FakeServer) -> None:
    server.comments = ('"seer" is being loaded, 3 s',)
    send(page, "Hello")
    page.wait(lambda: "3 s so far" in page.text(LAST) and server.running)
    page.click("[aria-label='Stop']")
    page.wait(lambda: "stopped" in page.text(f"{LAST} .cost") and not server.running)


def test_files_are_chosen_pasted_and_dropped(
    page: Page, server: FakeServer, tmp_path: Path
) -> None:
    picture = tmp_path / "one.png"
    picture.write_bytes(PIXEL)
    page.driver.find_element("css selector", "[type=file][aria-label=Files]").send_keys(
        str(picture)
    )
    page.wait(lambda: len(page.all(".preview img")) == 1)
    give(page, "paste", ("said.mp3", "audio/mpeg", bytes(64)))
    page.wait(lambda: len(page.all(".preview")) == 2)
    give(page, "drop", (HOSTILE, "", b"a ``` fence\n"), at=".scroller")
    page.wait(lambda: len(page.all(".preview")) == 3)
    assert page.run("return window.was_marked")
    shown = [one.text for one in page.all(".preview")]
    assert shown == ["", "said.mp3\n64 bytes", f"{HOSTILE}\n12 bytes"]
    assert page.barriers() == []
    send(page, "What is this?")
    assert answered(page)
    assert last_content(server) == [
        {"type": "text", "text": f"{HOSTILE}:\n````\na ``` fence\n````\n\nWhat is this?"},
        {"type": "image_url", "image_url": {"url": PICTURE}},
        {"type": "input_audio", "input_audio": {"data": SOUND, "format": "mp3"}},
    ]
    assert not page.all(".preview")
    for _ in range(2):
        assert len(page.all(".bubble img")) == 1
        assert page.text(".bubble .chip") == "said.mp3"
        assert page.text(".bubble summary") == HOSTILE
        page.driver.refresh()
        page.one(".bubble img")
    assert page.barriers() == []
    assert page.run("return window.was_run") is None


def test_a_sound_is_recorded(page: Page, server: FakeServer) -> None:
    page.click("[aria-label='Record a sound']")
    page.one("[aria-label='End the recording'][aria-pressed=true]")
    time.sleep(0.3)
    page.click("[aria-label='End the recording']")
    page.wait(lambda: page.text(".preview").startswith("recording.webm"))
    page.click("[aria-label='Send']")
    assert answered(page)
    [part] = last_content(server)
    assert part["input_audio"]["format"] == "webm"
    assert base64.b64decode(part["input_audio"]["data"]).startswith(b"\x1aE\xdf\xa3")
    del server.models[0]["capabilities"]  # as one that is not loaded
    page.open()
    page.wait(lambda: page.text("#model-name") == "seer")
    assert page.one("[aria-label='Add files']").get_attribute("title").count("sounds") == 1
    assert not page.all("[aria-label='Record a sound']")


def test_a_file_is_left_out_again_and_is_enough_alone(page: Page, server: FakeServer) -> None:
    give(page, "drop", ("a.png", "image/png", PIXEL), ("b.txt", "text/plain", b"two"))
    page.wait(lambda: len(page.all(".preview")) == 2)
    page.click("[aria-label='Leave a.png out']")
    assert len(page.all(".preview")) == 1
    page.click("[aria-label='Send']")
    assert answered(page)
    assert last_content(server) == "b.txt:\n```\ntwo\n```"
    give(page, "drop", ("a.png", "image/png", PIXEL))
    page.one(".preview")
    page.click("[aria-label='Send']")
    answered(page)
    assert last_content(server) == [{"type": "image_url", "image_url": {"url": PICTURE}}]


def test_what_cannot_be_taken_is_left_out_with_the_reason(page: Page, server: FakeServer) -> None:
    def fault(*files: tuple[Any, ...]) -> str:
        give(page, "drop", *files)
        page.wait(lambda: files[-1][0] in page.text(".foot > .fault"))
        return page.text(".foot > .fault")

    assert fault((HOSTILE, "", b"\xff\xfe\0")).startswith(f"{HOSTILE} was left out: it is neither")
    assert "more than 8 MiB" in fault(("big.png", "image/png", bytes(2**16), 129))
    assert "more than 256 KiB" in fault(("big.txt", "text/plain", b"x" * 2**14, 17))
    assert "it is empty" in fault(("none.wav", "audio/wav", b""))
    two = [(f"{at}.png", "image/png", bytes(2**16), 100) for at in (1, 2)]
    assert "at most 16 files of 11 MiB together" in fault(*two)
    assert len(page.all(".preview")) == 1
    server.models[0]["capabilities"] = ["completion", "chat"]
    page.open()
    page.wait(lambda: page.run("return document.querySelector('[aria-label=\"Add files\"]').title")
              == "Add files: texts")  # fmt: skip
    words = fault(("a.png", "image/png", PIXEL), ("a.wav", "audio/wav", bytes(9)))
    assert "takes no pictures" in words and "takes no sounds" in words
    assert not page.all(".preview")
    give(page, "drop", ("a.svg", "image/svg+xml", b"<svg/>"))
    page.one(".preview.is-text")
    assert not page.all(".foot > .fault")


STRANGE = """
const strange = [{images: null, sounds: null, files: null}, {files: [{name: 1, text: 'x'}]},
  {sounds: [{name: 'x', format: 'wav'}]}, {files: 'none'}, {images: [5]}];
strange.forEach((facts, at) => localStorage.setItem(`dovetail.chat.${at}`, JSON.stringify({
  id: String(at), name: `chat ${at}`, changed: 1, options: {},
  messages: [{role: 'user', content: 'x', ...facts}]})));
"""


def test_a_kept_chat_with_strange_attachments_is_passed_over(page: Page) -> None:
    page.run(STRANGE)
    page.driver.refresh()
    page.wait(lambda: page.text(".bubble") == "x")
    assert [one.text for one in page.all(".conversations .name")] == ["chat 0"]
    send(page, "Go on.")
    assert answered(page)


def test_pasted_text_is_text_though_a_picture_is_with_it(page: Page) -> None:
    page.run(
        "const data = new DataTransfer(); data.setData('text/plain', 'words');"
        "data.items.add(new File(['x'], 'a.png', {type: 'image/png'}));"
        "window.was_left = document.getElementById('composer-text').dispatchEvent("
        "new ClipboardEvent('paste', {bubbles: true, cancelable: true, clipboardData: data}))"
    )
    assert page.run("return window.was_left") and not page.all(".preview")


def test_a_chat_is_kept_without_pictures_that_have_no_room(page: Page) -> None:
    conversation = {
        "id": "full", "name": "", "changed": 1, "options": {},
        "messages": [{"role": "user", "content": "look", "images": ["x"]}],
    }  # fmt: skip
    made = page.call(
        "store.js",
        "(() => { a[0].messages[0].images = ['x'.repeat(6e6)];"
        " return [m.save(a[0]), m.load('full').messages]; })()",
        conversation,
    )
    assert "no room for the pictures" in made[0]
    assert made[1] == [{"role": "user", "content": "look"}]
