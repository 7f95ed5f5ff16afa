"""The programs that the docs show for client libraries, run against a model of known answers.

CLIENT_PYTHON is an interpreter that has the libraries; each program calls a tool once.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

from support.cued_model import cued_model, tool_call
from support.launching import environment
from support.recorded_requests import FOLDER, NAME, requests_in
from support.server_process import ServerProcess

pytestmark = pytest.mark.clients

PYTHON = os.environ.get("CLIENT_PYTHON", sys.executable)
DOCS = Path(__file__).parents[2] / "docs" / "how_to"
SHOWN, MODEL = "http://127.0.0.1:8000", "dovetail-demo"
LIMIT_S = 120.0
LAST = "It rains in Oslo."
LIBRARIES = {
    "use_langchain.md": ("langchain", "langchain_openai"),
    "use_openai_agents.md": ("agents",),
    "use_pydantic_ai.md": ("pydantic_ai", "openai"),
}
"""Pages -> the modules that their programs import."""
OTHER_API = {
    "use_langchain.md": ("base_url=", "use_responses_api=True, base_url="),
    "use_openai_agents.md": ("OpenAIResponsesModel", "OpenAIChatCompletionsModel"),
    "use_pydantic_ai.md": ("OpenAIChatModel", "OpenAIResponsesModel"),
}
"""Pages -> what is replaced so that the program uses the other of chat and responses."""


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("libraries")


@pytest.fixture(scope="module")
def url(place: Path, with_test_models: None) -> Iterator[str]:
    """Serve a model that asks for the weather, and ends when it is in the prompt."""
    answers = [
        (" the weather in Oslo", tool_call("weather", {"city": "Oslo"})),
        (" seven degrees and rain", LAST),
    ]
    model = cued_model(place / "replay", answers, otherwise="What?")
    (place / "requests").mkdir()
    words = ("--port", "0", "--served-model-name", MODEL, "--middleware", NAME)
    with ServerProcess(str(model), *words, env={FOLDER: str(place / "requests")}) as running:
        yield running.wait_ready().url


@cache
def has_modules(names: tuple[str, ...]) -> bool:
    code = "".join(f"import {name}\n" for name in names)
    return subprocess.run([PYTHON, "-c", code], capture_output=True).returncode == 0


@pytest.mark.parametrize("other", [False, True], ids=["shown", "other-api"])
@pytest.mark.parametrize("page", LIBRARIES)
def test_a_program_of_the_docs(
    request: pytest.FixtureRequest, place: Path, tmp_path: Path, page: str, other: bool
) -> None:
    if not has_modules(LIBRARIES[page]):
        pytest.skip(f"{' and '.join(LIBRARIES[page])} are not installed in {PYTHON}")
    url = request.getfixturevalue("url")
    (code,) = re.findall(r"^```python\n(.*?)^```", (DOCS / page).read_text(), re.S | re.M)
    assert SHOWN in code and MODEL in code
    code = code.replace(SHOWN, url)
    if other:
        code = code.replace(*OTHER_API[page])
    before = len(requests_in(place / "requests"))
    done = subprocess.run(
        [PYTHON, "-c", code],
        capture_output=True,
        text=True,
        timeout=LIMIT_S,
        env=environment(tmp_path),
        cwd=tmp_path,
    )
    assert done.returncode == 0 and LAST in done.stdout, done.stdout + done.stderr
    first, second = requests_in(place / "requests")[before:]
    assert {first["status"][0], second["status"][0]} == {200}
    assert "seven degrees and rain" in json.dumps(second["body"])
    paths = {one["path"].removeprefix("/v1/") for one in (first, second)}
    is_responses = other != (page == "use_openai_agents.md")
    assert paths == {"responses" if is_responses else "chat/completions"}
