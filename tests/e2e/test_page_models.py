"""The page's view of the models, in a real browser: states, load, unload, fetch, delete."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any

import pytest

from support.browser import LOOKS, Page, opened_browser, programs
from support.page_server import MIB, FakeServer, fake_server

pytestmark = [pytest.mark.e2e, pytest.mark.slow]
HOSTILE = '<img src=x onerror="window.was_run=1">"\u202e/model:Q4'
NOT_FOUND = {"error": {"message": "no such path.", "code": "unknown_path"}}


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
    """Return the view of three models, of which one is loaded."""
    server.models = [
        {"id": "small", "state": "loaded", "size_bytes": 3 * MIB, "needed_bytes": 5 * MIB},
        {"id": "other", "state": "unloaded", "size_bytes": 700 * MIB},
        {"id": HOSTILE, "state": "unloaded", "size_bytes": 2**31},
    ]
    server.refused, server.manager_key = {}, ""
    server.pull_stays = server.is_slow = False
    server.requests.clear()
    browser.size(1280, 860)
    browser.scheme("light")
    browser.open("models")
    browser.wait(lambda: len(browser.all(".model-row")) == 3)
    return browser


def row(page: Page, number: int) -> str:
    return page.all(".model-row")[number].text


def texts(page: Page, number: int) -> list[str]:
    """Return the texts of the buttons of a row that can be pressed."""
    buttons = page.all(".model-row")[number].find_elements("css selector", "button")
    return [one.text for one in buttons if one.is_displayed() and one.is_enabled() and one.text]


def press(page: Page, label: str) -> None:
    found = [one for one in page.all("button") if one.get_attribute("aria-label") == label]
    found[0].click()


def test_each_model_shows_its_state_and_its_memory(page: Page) -> None:
    assert row(page, 0).splitlines()[0] == "small loaded"
    assert "files 3 MiB" in row(page, 0) and "memory 5 MiB" in row(page, 0)
    assert texts(page, 0) == ["Chat", "Unload"] and texts(page, 1) == ["Chat", "Load"]
    assert row(page, 2).splitlines()[0] == f"{HOSTILE} unloaded"
    assert "files 2 GiB" in row(page, 2)
    assert page.text(".page-head [role=status]") == "3 models, 1 loaded."
    assert page.run("return window.was_run") is None


def test_a_model_is_loaded_and_unloaded(page: Page, server: FakeServer) -> None:
    server.is_slow = True
    press(page, "Load other")
    page.wait(lambda: "other loading" in row(page, 1))
    assert texts(page, 1) == ["Chat", "Unload"]
    server.is_slow = False
    page.wait(lambda: "other loaded" in row(page, 1))
    server.is_slow = True
    press(page, "Unload small")
    page.wait(lambda: "small leaving" in row(page, 0))
    assert texts(page, 0) == ["Chat"]
    server.is_slow = False
    page.wait(lambda: "small unloaded" in row(page, 0))
    press(page, f"Load {HOSTILE}")
    page.wait(lambda: f"{HOSTILE} loaded" in row(page, 2))
    assert server.bodies("/models/load") == [{"model": "other"}, {"model": HOSTILE}]
    assert server.bodies("/models/unload") == [{"model": "small"}]
    press(page, "Chat other")
    page.wait(lambda: page.run("return document.getElementById('model-choice').value") == "other")
    assert page.run("return location.hash") == "#chat"


def test_the_chosen_model_is_remembered_and_a_deleted_one_replaced(
    page: Page, server: FakeServer
) -> None:
    value = "return document.getElementById('model-choice').value"
    page.run("localStorage.setItem('dovetail.model', 'other')")
    page.driver.refresh()
    page.wait(lambda: len(page.all(".model-row.is-here")) == 1 and page.run(value) == "other")
    assert row(page, 1).splitlines()[1].startswith("chosen in the chat")
    server.models.pop(1)
    page.wait(lambda: len(page.all(".model-row")) == 2)
    page.wait(lambda: page.run(value) == "small")


def test_what_hinders_a_model_is_shown_in_its_row(page: Page, server: FakeServer) -> None:
    error = {"message": "it needs 9 GiB, and 1 GiB is free.", "code": "overloaded"}
    server.refused["/models/load"] = (503, {"error": error})
    press(page, "Load other")
    page.wait(lambda: "it needs 9 GiB" in row(page, 1))
    assert texts(page, 1) == ["Chat", "Load"]
    error = {"message": 'the model "other" is not served here.', "code": "model_not_found"}
    server.refused["/models/load"] = (404, {"error": error})
    press(page, "Load other")
    page.wait(lambda: "not served here" in row(page, 1))
    assert texts(page, 1) == ["Chat", "Load"]


@pytest.mark.parametrize(
    ("status", "body"),
    [(403, {"error": {"message": "a management key is needed."}}),
     (404, {"error": "a server does not delete models."}),
     pytest.param(404, NOT_FOUND, marks=pytest.mark.full_only)],
)  # fmt: skip
def test_what_a_server_does_not_offer_is_hidden_with_the_reason(
    page: Page, server: FakeServer, status: int, body: dict[str, Any]
) -> None:
    for path in ("/models/load", "/models/unload", "/api/delete", "/api/pull"):
        server.refused[path] = (status, body)
    press(page, "Load other")
    page.wait(lambda: texts(page, 1) == ["Chat"])
    assert texts(page, 0) == ["Chat", "Unload"]
    press(page, "Unload small")
    page.wait(lambda: texts(page, 0) == ["Chat"])
    press(page, "Delete other")
    page.click(".model-row .danger")
    page.wait(lambda: not page.all(".model-row .icon-button"))
    page.write("#pull-name", "some/model")
    page.click(".pull .primary")
    page.wait(lambda: not page.all(".pull"))
    error = body["error"]
    why = error if isinstance(error, str) else error["message"]
    lines = page.text(".reasons").splitlines()
    assert len(lines) == 4 and all(line.endswith(f": {why}") for line in lines)
    assert page.barriers() == []


def test_a_server_of_one_model_offers_nothing_and_says_why(page: Page, server: FakeServer) -> None:
    server.models = [{"id": "only"}]
    page.open("models")
    page.wait(lambda: len(page.all(".model-row")) == 1)
    assert texts(page, 0) == ["Chat"] and not page.all(".pull") and not page.all(".reasons")
    assert "--models any" in page.text(".page-head [role=status]")


def test_a_key_for_managing_is_asked_for_and_used_for_nothing_else(
    page: Page, server: FakeServer
) -> None:
    server.manager_key = "manager"
    press(page, "Load other")
    page.write("#key", "wrong")
    assert "Managing models" in page.text(".key-dialog h2")
    page.click(".key-dialog .primary")
    page.wait(lambda: "does not know this key" in page.text(".key-dialog"))
    page.write("#key", "manager")
    page.click(".key-dialog .primary")
    page.wait(lambda: "other loaded" in row(page, 1))
    press(page, "Unload small")
    page.wait(lambda: "small unloaded" in row(page, 0))
    assert page.run("return sessionStorage.getItem('dovetail.key')") is None
    server.manager_key = "another"
    press(page, "Load small")
    page.click(".key-dialog button[type=button]")
    page.wait(lambda: "needs an API key" in row(page, 0))


def test_many_models_can_be_searched(page: Page, server: FakeServer) -> None:
    assert not page.all("[type=search]")
    server.models += [{"id": f"more-{at}", "state": "unloaded"} for at in range(6)]
    page.wait(lambda: len(page.all(".model-row")) == 9)
    page.write("[aria-label='Search the models']", "MORE-4")
    page.wait(lambda: len(page.all(".model-row")) == 1)
    assert row(page, 0).startswith("more-4")
    page.write("[aria-label='Search the models']", " loaded small")
    page.wait(lambda: row(page, 0).startswith("small"))
    assert page.barriers() == []


def test_nobody_is_asked_for_a_key_again_and_again(page: Page, server: FakeServer) -> None:
    server.refused["/v1/models"] = (401, {"error": {"message": "a key is needed."}})
    page.click(".key-dialog button[type=button]")
    page.wait(lambda: "needs an API key" in page.text(".page-head [role=status]"))
    time.sleep(2.5)
    assert not page.all(".key-dialog")
    server.refused.clear()
    page.click("a[href='#chat']")
    page.click("a[href='#models']")
    page.wait(lambda: page.text(".page-head [role=status]") == "3 models, 1 loaded.")


def test_deleting_takes_a_second_click(page: Page, server: FakeServer) -> None:
    press(page, f"Delete {HOSTILE}")
    page.click(".model-row .danger + button")
    assert page.run("return document.activeElement.getAttribute('aria-label')") == (
        f"Delete {HOSTILE}"
    )
    assert not server.bodies("/api/delete")
    press(page, f"Delete {HOSTILE}")
    page.click(".model-row .danger")
    page.wait(lambda: len(page.all(".model-row")) == 2)
    assert server.bodies("/api/delete") == [{"model": HOSTILE}]


def test_a_model_is_fetched_with_progress(page: Page, server: FakeServer) -> None:
    server.pull_stays = True
    page.write("#pull-name", HOSTILE.replace("\u202e", ""))
    page.click(".pull .primary")
    page.wait(lambda: "2 MiB of 4 MiB. pulling a" in page.text(".pull-progress p"))
    assert page.run("return document.querySelector('progress').value") == 0.5
    assert page.barriers() == []
    page.click("a[href='#chat']")  # it goes on
    page.click("a[href='#models']")
    server.pull_stays = False
    page.wait(lambda: len(page.all(".model-row")) == 4)
    assert row(page, 3).startswith(HOSTILE.replace("\u202e", ""))
    assert not page.all(".pull-progress") and page.run("return window.was_run") is None


def test_fetching_is_cancelled_and_its_errors_are_shown(page: Page, server: FakeServer) -> None:
    server.pull_stays = True
    page.write("#pull-name", "org/big")
    page.click(".pull .primary")
    page.click(".pull-progress button")
    page.wait(lambda: "cancelled" in page.text(".pull .fault"))
    page.wait(lambda: not server.is_pulling)
    assert len(page.all(".model-row")) == 3
    server.refused["/api/pull"] = (404, {"error": "there is no model org/big."})
    page.click(".pull .primary")
    page.wait(lambda: page.text(".pull .fault").endswith("there is no model org/big."))
    words = {"message": '"org/big" is a name of another registry.', "code": "not_supported"}
    server.refused["/api/pull"] = (400, {"error": words})
    page.click(".pull .primary")
    page.wait(lambda: page.text(".pull .fault").endswith("of another registry."))
    server.refused["/api/pull"] = (200, {"error": "the disk is full"})
    page.click(".pull .primary")
    page.wait(lambda: page.text(".pull .fault").endswith("the disk is full"))


@pytest.mark.parametrize(("scheme", "width"), LOOKS)
def test_nothing_bars_people(page: Page, scheme: str, width: int) -> None:
    page.scheme(scheme)
    page.size(width, 800)
    press(page, "Delete other")
    assert page.barriers() == []
    wide, room = page.run(
        "const e = document.documentElement; return [e.scrollWidth, e.clientWidth]"
    )
    assert wide <= room
