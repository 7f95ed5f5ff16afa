"""Every line gets a result through the application's own routes, so many at once."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest
from fastapi import FastAPI

from dovetail.errors import EngineDead
from dovetail_plugins.apis.batches.call import Caller
from dovetail_plugins.apis.batches.lines import Line, Scan, scan
from dovetail_plugins.batch.drive import drive
from dovetail_plugins.batch.progress import Progress
from dovetail_plugins.batch.results import ResultFile
from dovetail_testing.fakes.async_engine import FakeAsyncEngine, Script
from support.serving import USER, app_for

CHAT, TEXT = "/v1/chat/completions", "/v1/completions"


def line(custom_id: str, url: str = TEXT, **body: Any) -> dict[str, Any]:
    asked = body or ({"messages": USER} if url == CHAT else {"prompt": "hi"})
    return {"custom_id": custom_id, "method": "POST", "url": url, "body": asked}


def driven(
    tmp_path: Path, lines: list[Any], script: Any = None, *, max_open: int = 4, app: Any = None
) -> tuple[list[Any], FakeAsyncEngine, Progress]:
    """Return the results' lines in the order of their writing, the engine, the progress."""
    made, engine = app or app_for(script)
    path = tmp_path / "out"
    results = ResultFile.open(path, resumes=True)
    results.begin()
    found = Scan(num_lines=len(lines), num_answered=0, num_failed=0)
    progress = Progress(found, is_bar=False)
    raws = [one if isinstance(one, bytes) else json.dumps(one).encode() for one in lines]
    read = [Line(number=i, raw=raw, is_whole=True) for i, raw in enumerate(raws, 1)]

    def death() -> str | None:
        return None if engine.is_alive else engine.death_reason

    try:
        asyncio.run(drive(read, Caller(made), results, progress, max_open=max_open, death_of=death))
    finally:
        results.close()
    return [json.loads(text) for text in path.read_text().splitlines()], engine, progress


def test_every_line_gets_its_own_answer(tmp_path: Path) -> None:
    script = lambda prompt, index: Script(pieces=(f"<{prompt}>",))  # noqa: E731
    lines = [line("c", CHAT), *(line(f"t{i}", prompt=f"p{i}") for i in range(9))]
    got, _, progress = driven(tmp_path, lines, script)
    by_id = {one["custom_id"]: one for one in got}
    assert len(got) == len(by_id) == 10
    assert by_id["t7"]["response"]["body"]["choices"][0]["text"] == "<p7>"
    assert "hi" in by_id["c"]["response"]["body"]["choices"][0]["message"]["content"]
    assert all(one["response"]["status_code"] == 200 and one["error"] is None for one in got)
    assert len({one["response"]["request_id"] for one in got}) == 10
    assert (progress.num_done, progress.num_failed, progress.num_tokens > 0) == (10, 0, True)


def test_bad_lines_become_errors_and_nothing_else_is_lost(tmp_path: Path) -> None:
    lines = [
        line("good"),
        b"no json",
        line("nowhere", "/v1/nowhere"),
        line("get", "/health"),
        line("vector", "/v1/embeddings", input="hi"),
        line("refused", temperature=-1, prompt="hi"),
        line("last", CHAT),
    ]
    got, _, progress = driven(tmp_path, lines)
    by_id = {one["custom_id"]: one for one in got}
    assert len(got) == 7
    assert by_id[None]["error"]["code"] == "invalid_json"
    assert by_id[None]["error"]["message"].startswith("line 2: ")
    for name in ("nowhere", "get"):
        assert (by_id[name]["response"], by_id[name]["error"]["code"]) == (None, "invalid_url")
    vector = by_id["vector"]["response"]
    assert vector["status_code"] == 404
    assert vector["body"]["error"]["code"] == "task_not_supported"
    refused = by_id["refused"]["response"]
    assert refused["status_code"] == 400
    assert "temperature" in refused["body"]["error"]["message"]
    assert {by_id[name]["response"]["status_code"] for name in ("good", "last")} == {200}
    assert progress.num_failed == 5


def test_any_other_route_can_be_asked(tmp_path: Path) -> None:
    app, engine = app_for()

    async def page() -> Any:
        from starlette.responses import Response

        return Response(b"\xff\xfe")

    async def plain() -> Any:
        from starlette.responses import PlainTextResponse

        return PlainTextResponse("two\nlines")

    async def pretty() -> Any:
        from starlette.responses import Response

        return Response('{\n "a": "\\u00e9 b"\n}')

    app.add_api_route("/page", page, methods=["POST"])
    app.add_api_route("/pretty", pretty, methods=["POST"])
    app.add_api_route("/plain", plain, methods=["POST"])
    lines = [line("t", "/tokenize", prompt="ab"), line("p", "/pretty"), line("h", "/page")]
    lines += [line("s", "/plain")]
    got, _, _ = driven(tmp_path, lines, app=(app, engine))
    by_id = {one["custom_id"]: one for one in got}
    assert by_id["t"]["response"]["body"]["tokens"] == [97, 98]
    assert by_id["p"]["response"]["body"] == {"a": "é b"}
    assert by_id["s"]["response"]["body"] == "two\nlines"
    assert by_id["h"]["error"]["code"] == "answer_is_no_json"


@pytest.mark.parametrize("max_open", [1, 3])
def test_no_more_lines_are_taken_up_than_there_is_room_for(max_open: int, tmp_path: Path) -> None:
    most = 0
    app, _ = app_for(Script(pieces=("a", "b"), step_s=0.001))

    class Counting(Caller):
        def __init__(self, app: FastAPI) -> None:
            super().__init__(app)
            self.num_open = 0

        async def post(self, path: str, body: bytes, request_id: str) -> tuple[int, bytes]:
            nonlocal most
            self.num_open += 1
            most = max(most, self.num_open)
            try:
                return await super().post(path, body, request_id)
            finally:
                self.num_open -= 1

    results = ResultFile.open(tmp_path / "out", resumes=True)
    progress = Progress(Scan(num_lines=9, num_answered=0, num_failed=0), is_bar=False)
    read = [
        Line(number=i, raw=json.dumps(line(f"{i}")).encode(), is_whole=True) for i in range(1, 10)
    ]
    caller = Counting(app)
    asyncio.run(drive(read, caller, results, progress, max_open=max_open, death_of=lambda: None))
    results.close()
    assert (most, progress.num_done) == (max_open, 9)


def test_a_dead_engine_ends_the_run_and_leaves_its_lines_open(tmp_path: Path) -> None:
    app, engine = app_for()

    def script(prompt: str, index: int) -> Script:
        if prompt == "die":
            engine.die("killed")
        return Script(step_s=0.001)

    engine.script = script
    lines = [line("a"), line("b", prompt="die"), line("c"), line("d")]
    with pytest.raises(EngineDead) as caught:
        driven(tmp_path, lines, app=(app, engine), max_open=1)
    assert caught.value.fix is not None and "resumes" in caught.value.fix
    kept = [json.loads(text)["custom_id"] for text in (tmp_path / "out").read_text().splitlines()]
    assert kept == ["a"]


def test_answered_lines_are_skipped(tmp_path: Path) -> None:
    lines = [line("a"), line("b"), b"no json"]
    driven(tmp_path, lines)
    got, engine, _ = driven(tmp_path, [*lines, line("c")])
    assert [one["custom_id"] for one in got].count("a") == 1
    assert sorted(one["custom_id"] or "" for one in got) == ["", "a", "b", "c"]
    assert len(engine.asked) == 1


def test_the_scan_finds_what_a_run_wrote(tmp_path: Path) -> None:
    source = tmp_path / "in"
    source.write_bytes(json.dumps(line("a")).encode() + b"\nno json\n")
    driven(tmp_path, [line("a"), b"no json"])
    results = ResultFile.open(tmp_path / "out", resumes=True)
    found = scan(source, 1000, results.answered, results.failed)
    results.close()
    assert (found.num_answered, found.num_failed) == (2, 1)
