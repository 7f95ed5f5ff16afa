"""The page's comparison of two models on one prompt, in a real browser."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest

from support.browser import LOOKS, Page, opened_browser, programs
from support.page_server import FakeServer, fake_server

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
HOSTILE = '"><img src=x onerror="window.was_run=1">'
OPTIONS = {"system": "Be brief.", "temperature": "0.5", "tools": '[{"type": "function"}]'}
KEEP = """
const chat = {id: 'kept', name: '', changed: 1, options: arguments[0],
  messages: [{role: 'user', content: 'x'}]};
localStorage.setItem('dovetail.chat.kept', JSON.stringify(chat));
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
    """Return the view with two models that chat, and two that do not."""
    server.models = [
        {"id": "small", "state": "loaded", "capabilities": ["completion", "chat"]},
        {"id": "vectors", "state": "loaded", "capabilities": ["embed"]},
        {"id": "broken", "state": "unloaded", "fault": "a file is missing"},
        {"id": HOSTILE, "state": "unloaded"},
    ]
    server.refused, server.pieces = {}, 5
    server.requests.clear()
    browser.size(1280, 860)
    browser.scheme("light")
    browser.open("compare")
    browser.wait(lambda: chosen(browser) == ["small", HOSTILE])
    return browser


def chosen(page: Page) -> list[str]:
    return [str(one.get_attribute("value")) for one in page.all(".compare-sides select")]


def ask(page: Page, text: str) -> None:
    page.write("#compare-text", text)
    page.click(".compare-form button")


def costs(page: Page) -> list[str]:
    """Return what both answers cost, once both are whole."""
    page.wait(lambda: len(page.all(".compare-sides [aria-label='Answer again']")) == 2)
    return [one.text for one in page.all(".compare-sides .cost")]


def test_both_models_answer_one_prompt(page: Page, server: FakeServer) -> None:
    page.run(KEEP, OPTIONS)
    page.driver.refresh()
    page.wait(lambda: chosen(page) == ["small", HOSTILE])
    offered = page.all(".compare-sides select")[0].find_elements("css selector", "option")
    assert [one.text for one in offered] == ["small", HOSTILE]
    page.write("#compare-text", "Count.\n")  # Enter sends
    for name, cost in zip(("small", HOSTILE), costs(page), strict=True):
        words = r" · 4 in · 5 out · [\d,]+ tokens/s · first after [\d.]+ m?s"
        assert re.fullmatch(re.escape(name) + words, cost), cost
    assert [one.text for one in page.all(".compare-sides .markdown")] == ["1 2 3 4 5"] * 2
    bodies = server.bodies("/v1/chat/completions")
    assert {body.pop("model") for body in bodies} == {"small", HOSTILE}
    assert bodies[0] == bodies[1]
    assert bodies[0]["messages"] == [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Count."},
    ]
    assert bodies[0]["temperature"] == 0.5 and "tools" not in bodies[0]
    assert page.run("return window.was_run") is None


@pytest.mark.parametrize("way", ["button", "Escape"])
def test_both_are_stopped_together(page: Page, server: FakeServer, way: str) -> None:
    server.pieces = -1
    ask(page, "Count.")
    page.wait(lambda: len(server.running) == 2)
    page.wait(lambda: all("3" in one.text for one in page.all(".compare-sides .message")))
    assert page.text(".compare-form button") == "Stop both"
    assert page.barriers() == []
    if way == "button":
        page.click(".compare-form button")
    else:
        page.one("#compare-text").send_keys("\ue00c")
    assert all("stopped" in cost for cost in costs(page))
    page.wait(lambda: not server.running)
    assert page.text(".compare-form button") == "Ask both"


def test_one_of_them_is_asked_again_and_faults_stay_on_their_side(
    page: Page, server: FakeServer
) -> None:
    ask(page, "Count.")
    costs(page)
    server.refused["/v1/chat/completions"] = (503, {"error": {"message": "there is no room."}})
    page.all(".compare-sides [aria-label='Answer again']")[1].click()
    page.wait(lambda: "there is no room." in page.all(".compare-sides section")[1].text)
    assert "1 2 3 4 5" in page.all(".compare-sides section")[0].text
    assert len(server.bodies("/v1/chat/completions")) == 3
    assert page.barriers() == []


def test_the_choice_is_remembered(page: Page) -> None:
    page.write("#compare-0", HOSTILE)
    page.write("#compare-1", "small")
    page.driver.refresh()
    page.wait(lambda: chosen(page) == [HOSTILE, "small"])


def test_a_server_of_one_model_has_nothing_to_compare(page: Page, server: FakeServer) -> None:
    server.models = server.models[:1]
    page.open("compare")
    page.wait(lambda: "takes two models" in page.text(".notice"))
    assert not page.all("#compare-text") and not page.all("a[href='#compare']")


@pytest.mark.parametrize(("scheme", "width"), LOOKS)
def test_nothing_bars_people(page: Page, scheme: str, width: int) -> None:
    page.scheme(scheme)
    page.size(width, 800)
    ask(page, "Count.")
    costs(page)
    assert page.barriers() == []
    wide, room = page.run(
        "const e = document.documentElement; return [e.scrollWidth, e.clientWidth]"
    )
    assert wide <= room
    lefts = [one.rect["x"] for one in page.all(".compare-sides section")]
    assert (lefts[0] < lefts[1]) == (width > 1000)
