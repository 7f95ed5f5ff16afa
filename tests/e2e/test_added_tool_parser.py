"""A tool parser of other people's code on a whole server: docs/tutorials/write_a_tool_parser.md,
step by step."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from dovetail.processes.process import child_environment
from support.server_process import ServerProcess

pytestmark = pytest.mark.e2e
ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = (ROOT / "docs" / "tutorials" / "write_a_tool_parser.md").read_text(encoding="utf-8")
TEXT = 'I look it up. <<do weather {"city": "Paris"}>>'
CITY = {
    "type": "object",
    "properties": {"city": {"enum": ["Paris", "Rome"]}},
    "required": ["city"],
    "additionalProperties": False,
}
QUESTION = {
    "messages": [{"role": "user", "content": "What is the weather in Paris?"}],
    "tools": [{"type": "function", "function": {"name": "weather", "parameters": CITY}}],
    "tool_choice": "required",
    "temperature": 0,
}
FUTURE = "from __future__ import annotations\n"
OPENING = "class DoCalls(ToolParser):\n    ...\n"


def python_blocks() -> list[str]:
    """Return the pieces of Python that the tutorial shows."""
    return re.findall(r"```python\n(.*?)```", TUTORIAL, re.DOTALL)


def first_file() -> str:
    """Return the file of the first step."""
    return python_blocks()[0]


def whole_file() -> str:
    """Return the file after the last step: what later blocks import stands above, their methods at
    the end of the class."""
    text, *more = python_blocks()[:-1]
    for block in more:
        imports, opening, body = block.partition(OPENING)
        assert opening
        text = text.replace(FUTURE, FUTURE + imports, 1) + body
    return text


def written(folder: Path, name: str, text: str) -> Path:
    """Return a file with this text."""
    file = folder / name
    file.write_text(text, encoding="utf-8")
    return file


def told(*args: str, env: dict[str, str] | None = None, cwd: Path | None = None) -> str:
    """Return what `dovetail plugins` with these words prints. Fails where the command does."""
    command = [sys.executable, "-m", "dovetail", "plugins", *args]
    env = child_environment() | (env or {})
    done = subprocess.run(command, capture_output=True, text=True, env=env, cwd=cwd, check=False)
    assert done.returncode == 0, done.stdout
    return done.stdout


def calls_of(message: dict[str, Any]) -> list[tuple[str, str]]:
    """Return the name and the arguments of each call of a message."""
    functions = [call["function"] for call in message["tool_calls"]]
    return [(function["name"], function["arguments"]) for function in functions]


def test_the_first_file_keeps_the_clauses(tmp_path: Path) -> None:
    written(tmp_path, "do_calls.py", first_file())
    said = told("check", "tool_parser:do_calls.py:DoCalls", cwd=tmp_path)
    line = r"tool_parser:do_calls.py:DoCalls@do_calls.py: \d+ passed, 2 not run\n"
    assert re.search(line, said)
    assert re.search(line, TUTORIAL)


@pytest.mark.parametrize(
    ("name", "text", "plugin"),
    [
        ("do_calls.py", whole_file(), "DoCalls"),
        ("bracketed.py", python_blocks()[-1], "Bracketed"),
    ],
)
def test_the_whole_file_and_the_block_keep_every_clause(
    name: str, text: str, plugin: str, tmp_path: Path
) -> None:
    written(tmp_path, name, text)
    said = told("check", f"tool_parser:{name}:{plugin}", cwd=tmp_path)
    assert re.search(rf"{plugin}@{name}: \d+ passed$", said.strip())


def test_the_first_file_is_served(tmp_path: Path) -> None:
    """Step 3, and what step 5 says of a parser without a constraint."""
    file = written(tmp_path, "do_calls.py", first_file())
    named = ("--tool-parser-plugin", str(file), "--tool-call-parser", "do")
    flags = (*named, "--enable-auto-tool-choice", "--port", "0")
    with ServerProcess(*flags) as running, running.wait_ready().client() as client:
        message = client.post("/v1/parse", json={"text": TEXT}).json()["message"]
        refused = client.post("/v1/chat/completions", json=QUESTION)
    assert message["content"] == "I look it up."
    assert calls_of(message) == [("weather", '{"city": "Paris"}')]
    assert refused.status_code == 400
    why = refused.json()["error"]["message"].partition(" Fix: ")[0]
    assert f"\n{why}\n" in TUTORIAL


def test_the_whole_file_is_served(tmp_path: Path) -> None:
    """Steps 4 to 6: found by the chat template, its required calls are streamed."""
    file = written(tmp_path, "do_calls.py", whole_file())
    template = "{% for m in messages %}{{ m.content }}{% endfor %} <<do NAME {...}>>"
    flags = ("--tool-parser-plugin", str(file), "--tool-call-parser", "auto")
    with ServerProcess(*flags, "--chat-template", template, "--port", "0") as running:
        with running.wait_ready().client() as client:
            answer = client.post("/v1/chat/completions", json=QUESTION).json()["choices"][0]
            streamed = client.post("/v1/chat/completions", json=QUESTION | {"stream": True}).text
        chosen = [line for line in running.lines if "tool_parser auto: do" in line]
    assert chosen
    assert chosen[0].partition("dovetail.server: ")[2] in TUTORIAL
    ((name, arguments),) = calls_of(answer["message"])
    assert name == "weather"
    assert json.loads(arguments)["city"] in ("Paris", "Rome")
    assert answer["finish_reason"] == "tool_calls"
    events = [line[6:] for line in streamed.splitlines() if line.startswith("data: {")]
    deltas = [json.loads(event)["choices"][0]["delta"] for event in events]
    parts = [call["function"] for delta in deltas for call in delta.get("tool_calls") or ()]
    assert "".join(part.get("arguments") or "" for part in parts) == arguments


def test_a_class_is_named_by_its_path(tmp_path: Path) -> None:
    """Step 3 without @register, by a file and by a module."""
    text = first_file().replace('@register("tool_parser", "do")\n', "")
    file = written(tmp_path, "do_calls.py", text)
    shown = told("show", f"tool_parser:{file}:DoCalls")
    assert "a name and a JSON object between << and >>" in shown
    path = os.pathsep.join((str(tmp_path), child_environment().get("PYTHONPATH", "")))
    assert told("show", "tool_parser:do_calls:DoCalls", env={"PYTHONPATH": path})


def test_a_package(tmp_path: Path) -> None:
    package, about = tmp_path / "my_package", tmp_path / "my_package-0.1.dist-info"
    package.mkdir()
    about.mkdir()
    written(package, "__init__.py", "")
    registered = '@register("tool_parser", "do")\n'
    written(package, "do_calls.py", whole_file().replace(registered, ""))
    written(about, "METADATA", "Metadata-Version: 2.1\nName: my-package\nVersion: 0.1\n")
    ((group, names),) = re.findall(
        r'```toml\n\[project.entry-points."(.*?)"\]\n(.*?)```', TUTORIAL, re.DOTALL
    )
    written(about, "entry_points.txt", f"[{group}]\n" + names.replace('"', ""))
    known = child_environment().get("PYTHONPATH", "")
    path = {"PYTHONPATH": os.pathsep.join((str(tmp_path), known))}
    listed = told("list", "tool_parser", env=path)
    assert re.search(r"tool_parser\s+do\s+my-package\s+my_package.do_calls:DoCalls", listed)
    said = told("check", "tool_parser:do", env=path)
    assert re.search(r"tool_parser:do@my-package: \d+ passed", said)
