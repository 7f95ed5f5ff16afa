"""Coding agents that are installed, run by `dovetail launch` with a model of known answers.

The model calls the agent's own tools: one changes a file, one runs a shell command on it. It ends
with its last answer only where the command's output is in the prompt.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from support.cued_model import cued_model, tool_call
from support.launching import environment, launch
from support.recorded_requests import FOLDER, NAME, requests_in
from support.server_process import ServerProcess

pytestmark = pytest.mark.clients

FILE, COMMAND = "notes.txt", "tr a-z A-Z < notes.txt"
LAST = "The note is amended."
SIDE_ANSWER = "A note about oaks"
"""What the model says to requests of other kinds: opencode wants a title for the conversation."""
PATCH = """*** Begin Patch
*** Update File: notes.txt
@@
-{before}+{after}*** End Patch
"""
CATALOG = (Path(__file__).parents[2] / "docs" / "how_to" / "use_codex.md").read_text()
CATALOG = CATALOG.split("```json\n")[1].split("```")[0]
"""What the docs give Codex to know of the model."""
SEARCH = """notes.txt
<<<<<<< SEARCH
{before}=======
{after}>>>>>>> REPLACE
"""
WHOLE = """notes.txt
```
{after}```"""
"""A changed file as aider wants it of a model that it does not know, without --edit-format diff."""
AIDER = (
    *("--yes-always", "--no-git", "--no-check-update", "--analytics-disable"),
    *("--auto-test", "--test-cmd", f"{COMMAND}; false"),
)
OPENCODE = '{"$schema": "https://opencode.ai/config.json", "model": "ollama/other"}'
"""Without a schema, opencode itself adds one."""
ELSEWHERE = "http://127.0.0.1:9"


@dataclass(frozen=True)
class Agent:
    """A program, its arguments for one task, and the calls of its tools. `word` is in its file, and
    in no other agent's prompts."""

    word: str
    arguments: tuple[str, ...]
    edit: Any
    users: tuple[str, str]
    """A file in the user's home that names another server, and its text."""
    shell: Any = None
    read: Any = None
    env: Mapping[str, str] = field(default_factory=dict)

    @property
    def before(self) -> str:
        return f"Acorns are {self.word}.\n"

    @property
    def after(self) -> str:
        return f"Acorns grow on {self.word} oaks.\n"

    @property
    def task(self) -> str:
        return f"Please amend the note with the word {self.word}."

    def steps(self) -> Iterator[tuple[str, Any]]:
        """Yield (what is new in the prompt, what the model writes then)."""
        task = f" with the word {self.word}"
        if self.read is None:
            yield task, self.edit
        else:
            yield task, self.read
            yield f" are {self.word}", self.edit
        if self.shell is not None:
            yield f" grow on {self.word} oaks", self.shell
        yield f" GROW ON {self.word.upper()} OAKS", LAST


def call(name: str, **arguments: Any) -> Any:
    return {"name": name, "arguments": arguments}


PLACE = "{folder}/notes.txt"
AGENTS = {
    "aider": Agent(
        "high",
        (*AIDER, FILE, "--message"),
        edit=WHOLE,
        users=(".aider.conf.yml", f"model: openai/other\nopenai-api-base: {ELSEWHERE}\n"),
    ),
    "aider-diff": Agent(
        "thick",
        (*AIDER, "--edit-format", "diff", FILE, "--message"),
        edit=SEARCH,
        users=(".aider.conf.yml", "edit-format: whole\n"),
    ),
    "claude": Agent(
        "broad",
        ("--dangerously-skip-permissions", "--max-turns", "6", "-p"),
        read=call("Read", file_path=PLACE),
        edit=call("Write", file_path=PLACE, content="{after}"),
        shell=call("Bash", command=COMMAND, description="Show the note"),
        users=(
            ".claude/settings.json",
            json.dumps({"env": {"ANTHROPIC_BASE_URL": ELSEWHERE}, "model": "other"}),
        ),
        env={"IS_SANDBOX": "1"},
    ),
    "cline": Agent(
        "young",
        (),
        read=call("read_files", files=[{"path": PLACE}]),
        edit=call("editor", path=PLACE, old_text="{before}", new_text="{after}"),
        shell=call("run_commands", commands=[COMMAND]),
        users=(
            ".cline/data/settings/providers.json",
            json.dumps({"version": 1, "lastUsedProvider": "ollama", "providers": {}}),
        ),
    ),
    "codex": Agent(
        "tall",
        ("exec", "--skip-git-repo-check", "-s", "danger-full-access"),
        edit=call("exec_command", cmd=f"apply_patch <<'EOF'\n{PATCH}EOF"),
        shell=call("exec_command", cmd=COMMAND),
        users=(".codex/config.toml", 'model = "other"\n'),
    ),
    "codex-catalog": Agent(
        "wide",
        (
            *("exec", "--skip-git-repo-check", "-s", "danger-full-access"),
            *("-c", 'model_catalog_json="{place}/catalog.json"'),
        ),
        edit=call("apply_patch", input=PATCH),
        shell=call("exec_command", cmd=COMMAND),
        users=(".codex/config.toml", 'model = "other"\n'),
    ),
    "opencode": Agent(
        "old",
        ("run",),
        read=call("read", filePath=PLACE),
        edit=call("write", filePath=PLACE, content="{after}"),
        shell=call("bash", command=COMMAND, description="Show the note"),
        users=(".config/opencode/opencode.json", OPENCODE),
    ),
}


def text_of(what: Any, values: Mapping[str, str]) -> str:
    """Return what the model writes: text, or a call with its values."""
    if isinstance(what, str):
        return filled(what, values)
    return tool_call(what["name"], filled(what["arguments"], values))


def filled(value: Any, values: Mapping[str, str]) -> Any:
    """Return JSON whose texts have the values."""
    if isinstance(value, dict):
        return {key: filled(item, values) for key, item in value.items()}
    if isinstance(value, list):
        return [filled(item, values) for item in value]
    return value.format(**values) if isinstance(value, str) else value


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder in which the agents work, each in its own: `work-NAME`."""
    return tmp_path_factory.mktemp("agents")


@pytest.fixture(scope="module")
def url(place: Path, with_test_models: None) -> Iterator[str]:
    """Serve a model with the answers to all agents."""
    answers = []
    for name, agent in AGENTS.items():
        folder = str(place / f"work-{name}")
        values = {"before": agent.before, "after": agent.after, "folder": folder}
        answers += [(cue, text_of(what, values)) for cue, what in agent.steps()]
    answers.append((" title generator", SIDE_ANSWER))
    model = cued_model(place / "replay", answers, otherwise=SIDE_ANSWER)
    (place / "requests").mkdir()
    (place / "catalog.json").write_text(CATALOG)
    words = ("--port", "0", "--served-model-name", "oak", "--middleware", NAME)
    with ServerProcess(str(model), *words, env={FOLDER: str(place / "requests")}) as running:
        yield running.wait_ready().url


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_changes_a_file_and_runs_a_command(
    request: pytest.FixtureRequest, place: Path, tmp_path: Path, name: str
) -> None:
    program = name.partition("-")[0]
    if shutil.which(program) is None:
        pytest.skip(f"{program} is not installed")
    url = request.getfixturevalue("url")
    agent, work = AGENTS[name], place / f"work-{name}"
    work.mkdir()
    (work / FILE).write_text(agent.before)
    env = environment(tmp_path, **agent.env)
    users, text = tmp_path / "home" / agent.users[0], agent.users[1]
    users.parent.mkdir(parents=True, exist_ok=True)
    users.write_text(text)
    arguments = [word.replace("{place}", str(place)) for word in agent.arguments]
    words = (program, "--url", url, "--", *arguments, agent.task)
    done = launch(*words, env=env, folder=work)
    shown = done.stdout + done.stderr
    assert done.returncode == 0, shown
    assert (work / FILE).read_text() == agent.after, shown
    assert LAST in done.stdout, shown
    assert users.read_text() == text
    requests = requests_in(place / "requests")
    output = agent.after.upper().strip()
    (last,) = [json.dumps(one["body"]) for one in requests if output in json.dumps(one["body"])]
    assert '"incomplete"' not in last
    assert [one for one in requests if one["status"] != [200]] == []
