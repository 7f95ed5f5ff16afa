"""--log-config-file and uvicorn's levels: which lines go where, and what files are refused."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from dovetail.config.rules.observability.log_config import read_log_config
from dovetail.config.sections.frontend import FrontendConfig
from dovetail.errors import ConfigError
from dovetail.observability.logging import UVICORN_LOGGERS, configure
from dovetail.server.http.access_log import silence
from dovetail.server.launch.lifecycle import ServerLifecycle
from dovetail.server.launch.sockets import bind
from support.serving import app_for

NAMES = ("", "dovetail", "dovetail.server", "dovetail.engine", *UVICORN_LOGGERS)


@pytest.fixture(autouse=True)
def loggers_are_left_as_found() -> Iterator[None]:
    loggers = [logging.getLogger(name) for name in NAMES]
    before = [(one, list(one.handlers), one.level, one.propagate) for one in loggers]
    yield
    for one, handlers, level, propagate in before:
        for handler in set(one.handlers) - set(handlers):
            handler.close()
        one.handlers, one.level, one.propagate = handlers, level, propagate
        one.disabled = False


def written(folder: Path, config: Any) -> str:
    file = folder / "log.json"
    file.write_text(config if isinstance(config, str) else json.dumps(config))
    return str(file)


def to_file(folder: Path, **loggers: Any) -> dict[str, Any]:
    """Return a setup with a handler "file", by logger."""
    handler = {"class": "logging.FileHandler", "filename": str(folder / "out"), "formatter": "f"}
    found: dict[str, Any] = {
        "version": 1, "formatters": {"f": {"format": "%(name)s|%(message)s"}},
        "handlers": {"file": handler}, "loggers": loggers,
    }  # fmt: skip
    root = found["loggers"].pop("root", None)
    return found | ({"root": root} if root else {})


def lines_of(folder: Path, config: Any, capsys: pytest.CaptureFixture[str]) -> tuple[str, str]:
    """Return what goes to the file and to standard error, of one line of each part."""
    content = read_log_config(written(folder, config))
    configure("info", uvicorn_level="info", config=content)
    for name in ("dovetail.server", "dovetail.engine.core", "uvicorn.error", "uvicorn.access"):
        logging.getLogger(name).info("from %s", name)
    logging.getLogger("dovetail.server").debug("quiet")
    out = folder / "out"
    return out.read_text() if out.exists() else "", capsys.readouterr().err


FILE = {"handlers": ["file"], "level": "INFO"}
ALL = ("dovetail.server", "dovetail.engine.core", "uvicorn.error", "uvicorn.access")


def test_the_root_takes_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, err = lines_of(tmp_path, to_file(tmp_path, root=FILE), capsys)
    assert text.splitlines() == [f"{name}|from {name}" for name in ALL]
    assert err == ""


def test_what_is_not_named_stays(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    text, err = lines_of(tmp_path, to_file(tmp_path, uvicorn=FILE), capsys)
    assert text.splitlines() == [f"{name}|from {name}" for name in ALL[2:]]
    assert [line.rpartition(" ")[2] for line in err.splitlines()] == list(ALL[:2])


def test_a_level_alone_keeps_the_place(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config = {
        "version": 1,
        "loggers": {"dovetail": {"level": "DEBUG"}, "uvicorn.access": {"level": 40}},
    }
    _, err = lines_of(tmp_path, config, capsys)
    assert "dovetail.server: quiet" in err
    assert "from uvicorn.error" in err
    assert "from uvicorn.access" not in err


@pytest.mark.parametrize(
    ("level", "shown"), [("debug", 3), ("info", 2), ("warning", 1), ("critical", 0)]
)
def test_uvicorns_level(level: str, shown: int, capsys: pytest.CaptureFixture[str]) -> None:
    configure("info", uvicorn_level=level)
    for number in (logging.DEBUG, logging.INFO, logging.WARNING):
        logging.getLogger("uvicorn.error").log(number, "line")
    assert capsys.readouterr().err.count("line") == shown
    configure("info", uvicorn_level="trace")
    assert logging.getLogger("uvicorn.asgi").getEffectiveLevel() == 5


@pytest.mark.parametrize("has_flag", [False, True])
def test_the_access_log(has_flag: bool, capsys: pytest.CaptureFixture[str]) -> None:
    configure("info", uvicorn_level="info")
    app, engine = app_for()
    frontend = FrontendConfig(disable_uvicorn_access_log=has_flag)

    async def main() -> None:
        sock = bind(None, 0)
        url = f"http://127.0.0.1:{sock.getsockname()[1]}"
        life = ServerLifecycle(app, engine, frontend)  # type: ignore[arg-type]
        ready = asyncio.Event()
        task = asyncio.ensure_future(life.run(sock, ready.set))
        await ready.wait()
        async with httpx.AsyncClient() as client:
            await client.get(f"{url}/live")
        life.stop()
        await task

    asyncio.run(main())
    err = capsys.readouterr().err
    assert ('"GET /live HTTP/1.1" 200' in err) is not has_flag
    assert "uvicorn.error: Started server process" in err


@pytest.mark.parametrize(
    ("content", "told"),
    [
        ("{", "is not valid JSON"),
        ("[1]", "holds no JSON object"),
        ({}, "version"),
        ({"version": 7}, "version"),
        ({"version": 1, "handlers": {"a": {"class": "nowhere.Handler"}}}, "nowhere"),
        ({"version": 1, "loggers": {"dovetail": {"level": "LOUD"}}}, "LOUD"),
        ({"version": 1, "loggers": {"dovetail": {"handlers": ["none"]}}}, "none"),
        ({"version": 1, "root": "stderr"}, "is not valid"),
        ({"version": 1, "loggers": ["a"]}, "is not valid"),
        (
            {"version": 1, "handlers": {"a": {"class": "logging.FileHandler", "filename": "/"}}},
            "'a'",
        ),
    ],
)
def test_bad_files_are_told(tmp_path: Path, content: Any, told: str) -> None:
    with pytest.raises(ConfigError, match=told) as found:
        configure("info", config=read_log_config(written(tmp_path, content)))
    assert found.value.where == "--log-config-file"
    assert found.value.fix


def test_a_missing_file_is_told() -> None:
    with pytest.raises(ConfigError, match="cannot read"):
        read_log_config("/nowhere.json")


def test_nothing_in_a_line_moves_the_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    configure("info")
    try:
        raise ValueError("\x1b]0;owned\x07\u202e")
    except ValueError:
        logging.getLogger("dovetail.x").exception("a\x1b[2Jb\r\x9b31m\tc")
    logging.getLogger("dovetail.x").warning("two\nlines\x1b[0m \u2028é")
    text = capsys.readouterr().err
    assert "a\\x1b[2Jb\\r\\x9b31m\tc\n  | Traceback" in text
    assert "ValueError: \\x1b]0;owned\\x07\\u202e\n" in text
    assert "two\\nlines\\x1b[0m \\u2028é\n" in text


def test_plugins_and_kernels_log_as_dovetail_does(capsys: pytest.CaptureFixture[str]) -> None:
    configure("info", prefix="[rank 1] ")
    for name in ("dovetail_plugins.workers.cpu", "dovetail_kernels.cpu.library"):
        logging.getLogger(name).info("from %s", name)
        logging.getLogger(name).debug("quiet")
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(": ", 1)[1] for line in lines] == [
        "from dovetail_plugins.workers.cpu",
        "from dovetail_kernels.cpu.library",
    ]
    assert all(line.startswith("[rank 1] ") for line in lines)


FORGED = "x\n08:00:00.000 INFO    1 dovetail.server: ready\r\x1b[2K\u2028y"


def test_what_somebody_sent_makes_no_line_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    configure("info")
    logger = logging.getLogger("dovetail.server")
    try:
        try:
            raise KeyError(FORGED)
        except KeyError as error:
            raise ValueError(FORGED) from error
    except ValueError as error:
        logger.info("refused: %s", FORGED, exc_info=error)
    logger.info("refused: %s", FORGED, stack_info=True)
    lines = capsys.readouterr().err.splitlines()
    starts = [line for line in lines if not line.startswith("  | ")]
    assert len(starts) == 2 and all("refused: x\\n08:00" in line for line in starts)
    assert sum("ValueError: x" in line for line in lines) == 1 and len(lines) > 10


@pytest.mark.parametrize(
    ("query", "shown"),
    [
        ("", ""),
        ("?api_key=s3cret", "?api_key=***"),
        ("?a=1&API-Key=s3cret&b=2", "?a=1&API-Key=***&b=2"),
        ("?api%5Fkey=s3cret", "?api%5Fkey=***"),
        ("?%61pi_key=s3cret;x=1", "?%61pi_key=***;x=1"),
        ("?access_token=s3cret?x", "?access_token=***"),
        ("?key=s3cret&key=s3cret", "?key=***&key=***"),
        ("?apikey=", "?apikey=***"),
        ("?stream=true&starting_after=4", "?stream=true&starting_after=4"),
    ],
)
def test_keys_in_queries_are_not_in_the_access_log(
    query: str, shown: str, capsys: pytest.CaptureFixture[str]
) -> None:
    configure("info", uvicorn_level="info")
    silence(FrontendConfig())
    args = ("1.2.3.4:5", "GET", f"/v1/models{query}", "1.1", 200)
    logging.getLogger("uvicorn.access").info('%s - "%s %s HTTP/%s" %d', *args)
    line = capsys.readouterr().err
    assert "s3cret" not in line and f"GET /v1/models{shown} HTTP/1.1" in line
