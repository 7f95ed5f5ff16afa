"""The files of the page: what they are served with, and what they never hold."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from dovetail_plugins.apis.ui.files import FOLDER, TYPES
from support.serving import app_for, send

FILES = sorted(path for path in FOLDER.iterdir() if path.name != "index.html")
TEXTS = {path.name: path.read_text() for path in FOLDER.iterdir()}


BROWSER = "text/html,application/xhtml+xml,application/xml;q=0.9,*/*;q=0.8"


def test_programs_that_ask_for_the_root_get_the_line_that_ollamas_clients_look_for() -> None:
    app, _ = app_for(api_key=("key",))
    for accept in ("*/*", "application/json, text/plain, */*", ""):
        answer = send(app, "GET", "/", accept=accept)
        assert (answer.status_code, answer.text) == (200, "Ollama is running")
        assert answer.headers["content-type"].startswith("text/plain")
        assert "Accept" in answer.headers["vary"].split(", ")
    head = send(app, "HEAD", "/")
    assert (head.status_code, head.content) == (200, b"")


def test_the_page_needs_no_key_and_may_do_nothing_but_ask_its_server() -> None:
    app, engine = app_for(api_key=("key",))
    for path in ("/", "/ui"):
        answer = send(app, "GET", path, accept=BROWSER)
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        policy = dict(
            part.strip().split(" ", 1)
            for part in answer.headers["content-security-policy"].split(";")
        )
        assert policy.pop("img-src") == "'self' data:" and policy.pop("media-src") == "blob:"
        own = ("script-src", "style-src", "connect-src")
        assert [policy.pop(name) for name in own] == ["'self'"] * 3
        for name in ("default-src", "frame-ancestors", "base-uri", "form-action"):
            assert policy.pop(name) == "'none'"
        assert policy == {"require-trusted-types-for": "'script'", "trusted-types": "'none'"}
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer"
    assert not engine.asked


def test_who_has_a_file_gets_it_once() -> None:
    app, _ = app_for()
    for path in ("/", "/ui/app.js"):
        first = send(app, "GET", path, accept=BROWSER)
        tag = first.headers["etag"]
        for known in (tag, f'"other", W/{tag}', "*"):
            again = send(app, "GET", path, accept=BROWSER, if_none_match=known)
            assert (again.status_code, again.content) == (304, b"")
            assert again.headers["etag"] == tag
        other = send(app, "GET", path, accept=BROWSER, if_none_match='"other"')
        assert other.content == first.content
        head = send(app, "HEAD", path)
        assert (head.status_code, head.content) == (200, b"")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_files_are_served_as_what_they_are(path: Path) -> None:
    app, _ = app_for(api_key=("key",))
    answer = send(app, "GET", f"/ui/{path.name}")
    assert answer.content == path.read_bytes()
    assert answer.headers["content-type"] == TYPES[path.suffix[1:]]
    assert "default-src 'none'" in answer.headers["content-security-policy"]


@pytest.mark.parametrize(
    "name", ["nope.js", "index.html", "..%2Ffiles.py", "%2e%2e", "App.js", "app.js%00", "app.py"]
)
def test_nothing_else_is_a_file_of_the_page(name: str) -> None:
    app, _ = app_for()
    answer = send(app, "GET", f"/ui/{name}")
    assert answer.status_code == 404
    assert answer.json()["error"]["message"]


def test_no_ui_takes_the_page_away() -> None:
    app, _ = app_for(ui=False)
    for path in ("/", "/ui", "/ui/app.js"):
        assert send(app, "GET", path).status_code == 404
    told = send(app, "GET", "/").json()["error"]["message"]
    assert told == "/ is there only where the server was started without --no-ui."


def test_every_file_that_is_named_is_there_and_each_is_used() -> None:
    named = set(re.findall(r'(?:href|src)="ui/([^"]+)"', TEXTS["index.html"]))
    for name in [name for name in TEXTS if name.endswith(".js")]:
        named |= set(re.findall(r'from "\./([^"]+)"', TEXTS[name]))
    assert named == {path.name for path in FILES}


def test_the_page_holds_nothing_that_its_policy_forbids() -> None:
    """Nor what could make text into markup, or name another host."""
    markup = TEXTS["index.html"]
    assert not re.search(r"<style|\bstyle=|\bon\w+=|<script(?! type=\"module\" src=)", markup)
    for name, text in TEXTS.items():
        bad = r"innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(|new Function|@import"
        assert not re.search(bad, text), name
        hosts = set(re.findall(r"https?://[\w.]+", text))
        assert hosts <= {"http://www.w3.org"}, name  # the name of SVG
        assert text.count("\n") <= 500, name
