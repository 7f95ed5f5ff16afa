"""ClientProgram: its settings name the server and its model, and leave the user's files alone."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from dovetail.interfaces.client import ClientProgram, LaunchSettings, LaunchTarget
from dovetail_testing.contract import default_options

URL, KEY = "http://127.0.0.1:18427", "sk-a-key-of-this-test"
MODEL, OTHER = "some-org/Some-Model-7B", "other-model"
HOME_VARIABLES = {
    "HOME": "",
    "XDG_CONFIG_HOME": ".config",
    "XDG_DATA_HOME": ".local/share",
    "XDG_STATE_HOME": ".local/state",
}
VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")


@pytest.fixture
def client(plugin: Any) -> ClientProgram:
    """Return the client with its default options."""
    made: ClientProgram = plugin(default_options(plugin))
    return made


@pytest.fixture
def server(tmp_path: Path) -> LaunchTarget:
    """Return a server whose key and context are known."""
    return LaunchTarget(
        url=URL, model=MODEL, folder=tmp_path / "own", api_key=KEY, context_tokens=65_536
    )


def texts_of(settings: LaunchSettings) -> Iterator[str]:
    """Yield every text that reaches the program."""
    yield from settings.env.values()
    yield from settings.files.values()
    yield from settings.arguments


def has(settings: LaunchSettings, word: str) -> bool:
    """Return whether a text has the word, also as JSON writes it."""
    return any(word in text or json.dumps(word)[1:-1] in text for text in texts_of(settings))


class TestClient:
    """Clauses of clients."""

    kind = "client"

    def test_says_how_to_get_it(self, plugin: Any) -> None:
        """`program` is one word that a shell finds, and `install` is not empty."""
        assert re.fullmatch(r"[A-Za-z0-9][\w.+-]*", plugin.program)
        assert plugin.install.strip()

    def test_names_the_server(self, client: ClientProgram, server: LaunchTarget) -> None:
        """The address, the model and the key are in the settings."""
        settings = client.settings(server)
        assert [word for word in (URL, MODEL, KEY) if not has(settings, word)] == []

    def test_an_unknown_context_and_no_key_are_fine(
        self, client: ClientProgram, server: LaunchTarget
    ) -> None:
        """A server without a key, whose context is unknown, has settings too."""
        settings = client.settings(replace(server, api_key=None, context_tokens=None))
        assert has(settings, URL) and has(settings, MODEL) and not has(settings, KEY)

    def test_names_no_other_model(self, client: ClientProgram, server: LaunchTarget) -> None:
        """For another model the settings are other ones: nothing of the first is left."""
        client.settings(server)
        settings = client.settings(replace(server, model=OTHER))
        assert has(settings, OTHER) and not has(settings, MODEL)

    def test_files_stay_in_its_folder(self, client: ClientProgram, server: LaunchTarget) -> None:
        """Files are named by relative paths, and lead nowhere else."""
        names = [Path(name) for name in client.settings(server).files]
        assert [name for name in names if name.is_absolute() or ".." in name.parts] == []

    def test_leaves_the_user_alone(
        self,
        client: ClientProgram,
        server: LaunchTarget,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        """It writes nothing, and no setting names a place in the user's home."""
        home = tmp_path / "home"
        home.mkdir()
        for name, part in HOME_VARIABLES.items():
            monkeypatch.setenv(name, str(home / part))
        settings = client.settings(server)
        assert list(tmp_path.rglob("*")) == [home]
        assert not has(settings, str(home)) and not has(settings, "~/")

    def test_variables_can_be_set(self, client: ClientProgram, server: LaunchTarget) -> None:
        """Names of variables are names, and no text has a NUL byte."""
        settings = client.settings(server)
        assert [name for name in settings.env if not VARIABLE.fullmatch(name)] == []
        assert not any("\0" in text for text in texts_of(settings))
