"""What each client sets, read as the program itself reads it."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest

from dovetail.interfaces.client import LaunchSettings, LaunchTarget
from dovetail_plugins.clients.aider import Aider
from dovetail_plugins.clients.claude import Claude
from dovetail_plugins.clients.cline import Cline
from dovetail_plugins.clients.codex import Codex
from dovetail_plugins.clients.opencode import Opencode

URL = "http://127.0.0.1:8123"
ODD = 'some-org/"odd"\\model = 7\u00fc'


def settings_of(client: type[Any], **changes: Any) -> LaunchSettings:
    """Return the settings of a client for a server."""
    facts: dict[str, Any] = {
        "url": URL,
        "model": "some-org/m",
        "folder": Path("/own"),
        "api_key": "k",
        "context_tokens": 65_536,
    }
    found: LaunchSettings = client(client.Options()).settings(LaunchTarget(**(facts | changes)))
    return found


def test_claude_is_set_by_variables_and_a_file() -> None:
    """The file takes precedence over the `env` of the user's settings, variables do not."""
    found = settings_of(Claude)
    assert found.arguments == ("--settings", "/own/settings.json")
    settings = json.loads(found.files["settings.json"])
    assert settings == {"model": "some-org/m", "env": found.env}
    assert found.env["ANTHROPIC_BASE_URL"] == URL
    assert found.env["ANTHROPIC_AUTH_TOKEN"] == "k"
    assert found.env["ANTHROPIC_API_KEY"] == ""
    models = {name: value for name, value in found.env.items() if name.endswith("_MODEL")}
    assert set(models.values()) == {"some-org/m"} and "ANTHROPIC_MODEL" in models
    assert found.env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "16384"
    assert found.env["CLAUDE_CODE_AUTO_COMPACT_WINDOW"] == "65536"


def test_claude_asks_for_no_more_than_it_would() -> None:
    found = settings_of(Claude, context_tokens=1_000_000)
    assert found.env["CLAUDE_CODE_MAX_OUTPUT_TOKENS"] == "32000"


def test_claude_sends_a_token_to_a_server_without_keys() -> None:
    """Without one it asks the user to log in."""
    found = settings_of(Claude, api_key=None, context_tokens=None)
    assert found.env["ANTHROPIC_AUTH_TOKEN"] == "none"
    assert "CLAUDE_CODE_MAX_OUTPUT_TOKENS" not in found.env


@pytest.mark.parametrize("model", ["some-org/m", ODD])
def test_cline_has_a_file_that_a_variable_names(model: str) -> None:
    found = settings_of(Cline, model=model)
    assert not found.arguments
    assert found.env["CLINE_PROVIDER_SETTINGS_PATH"] == "/own/providers.json"
    assert found.env["CLINE_SESSION_BACKEND_MODE"] == "local"
    content = json.loads(found.files["providers.json"])
    provider = content["providers"][content["lastUsedProvider"]]["settings"]
    assert (provider["model"], provider["baseUrl"]) == (model, f"{URL}/v1")
    assert (provider["apiKey"], provider["contextWindow"]) == ("k", 65_536)


def test_cline_guesses_no_context() -> None:
    (text,) = settings_of(Cline, context_tokens=None).files.values()
    assert "contextWindow" not in text


@pytest.mark.parametrize("model", ["some-org/m", ODD])
def test_codex_has_a_home_and_a_profile(model: str) -> None:
    found = settings_of(Codex, model=model)
    assert found.env == {"CODEX_HOME": "/own", "LOCAL_SERVER_KEY": "k"}
    assert found.arguments == ("--profile", "dovetail")
    ((name, text),) = found.files.items()
    assert name == "dovetail.config.toml"
    assert tomllib.loads(text) == {
        "model": model,
        "model_provider": "dovetail",
        "model_context_window": 65_536,
        "model_providers": {
            "dovetail": {
                "name": "dovetail",
                "base_url": f"{URL}/v1",
                "wire_api": "responses",
                "env_key": "LOCAL_SERVER_KEY",
            }
        },
    }


def test_codex_asks_for_no_key_where_none_is_needed() -> None:
    """With `env_key` it would not start without the variable."""
    found = settings_of(Codex, api_key=None, context_tokens=None)
    assert found.env == {"CODEX_HOME": "/own"}
    (text,) = found.files.values()
    assert "env_key" not in text and "model_context_window" not in text


@pytest.mark.parametrize("model", ["some-org/m", ODD])
def test_opencode_is_set_by_a_variable(model: str) -> None:
    found = settings_of(Opencode, model=model)
    assert not found.files and not found.arguments
    config = json.loads(found.env["OPENCODE_CONFIG_CONTENT"])
    assert config["model"] == config["small_model"] == f"dovetail/{model}"
    provider = config["provider"]["dovetail"]
    assert provider["options"] == {"baseURL": f"{URL}/v1", "apiKey": "k"}
    assert provider["models"][model]["limit"] == {"context": 65_536, "output": 16_384}


def test_opencode_guesses_no_limits() -> None:
    found = settings_of(Opencode, context_tokens=None)
    config = json.loads(found.env["OPENCODE_CONFIG_CONTENT"])
    assert config["provider"]["dovetail"]["models"] == {"some-org/m": {"name": "some-org/m"}}


def test_aider_has_variables_and_arguments() -> None:
    found = settings_of(Aider)
    assert found.env == {"OPENAI_API_BASE": f"{URL}/v1", "OPENAI_API_KEY": "k"}
    assert found.arguments == (
        *("--model", "openai/some-org/m"),
        *("--openai-api-base", f"{URL}/v1"),
        *("--model-metadata-file", "/own/model.metadata.json"),
    )
    facts = json.loads(found.files["model.metadata.json"])
    assert facts["openai/some-org/m"]["max_input_tokens"] == 65_536


def test_aider_needs_no_file_without_facts() -> None:
    found = settings_of(Aider, context_tokens=None)
    assert not found.files
    assert found.arguments == ("--model", "openai/some-org/m", "--openai-api-base", f"{URL}/v1")
