"""Families of endpoints: one is a declaration, and whoever makes it gets all that surrounds it."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Annotated, Any

import pytest
from fastapi import Depends
from pydantic import BaseModel

from dovetail.config.config import Config
from dovetail.config.rules.checks import check_choices
from dovetail.config.sections.frontend import FrontendConfig
from dovetail.config.sections.plugin import PluginConfig
from dovetail.errors import ConfigError, PluginError
from dovetail.interfaces.api import Api, ApiError, Route
from dovetail.interfaces.plugin import Info
from dovetail.registry.catalog import Catalog
from dovetail.server.families import (
    ServedApi,
    build_apis,
    check_routes,
    choose_apis,
    opened_apis,
    own_apis,
    states_of,
)
from dovetail.server.generate.dependencies import ServerOf, state_of
from support.serving import app_for, send


@dataclass
class Notes:
    """What the family below keeps."""

    words: list[str] = field(default_factory=list)
    is_closed: bool = False


class Word(BaseModel):
    word: str


async def add_word(body: Word, notes: Annotated[Notes, Depends(state_of(Notes))]) -> dict[str, Any]:
    """Keep a word."""
    notes.words.append(body.word)
    return {"words": notes.words}


class NotesApi(Api):
    """Keeps words."""

    info = Info(summary="keeps words")

    @dataclass(frozen=True, slots=True, kw_only=True)
    class Options:
        """What is kept from the start."""

        first_word: str = field(default="", metadata={"help": "word that is there already"})

    routes = (
        Route(method="POST", path="/notes", endpoint=add_word, body=Word),
        Route(method="POST", path="/dev_notes", endpoint=add_word, flag="enable_dev_endpoints"),
    )

    @asynccontextmanager
    async def state(self, frontend: FrontendConfig) -> AsyncIterator[Notes]:
        first = self.options.first_word
        notes = Notes(words=[first] if first else [])
        yield notes
        notes.is_closed = True

    def error_body(self, status: int, error: ApiError, request_id: str | None) -> bytes:
        return json.dumps({"oh": error.message, "status": status, "id": request_id}).encode()


def served(api: Api, state: Any = None) -> ServedApi:
    return ServedApi(name="notes", api=api, state=state)


def config_with(api: str) -> Config:
    return Config(frontend=FrontendConfig(api=(api,)))


def test_an_endpoint_in_ten_lines() -> None:
    async def greet(name: str, server: ServerOf) -> dict[str, str]:
        """Greet somebody, in the name of the model."""
        return {"greeting": f"{server.engine.spec.model_names[0]} greets {name}"}

    class Greetings(Api):
        info = Info(summary="greets")
        routes = (Route(method="GET", path="/greet/{name}", endpoint=greet),)

    app, _ = app_for(apis=[served(Greetings(None))])
    assert send(app, "GET", "/greet/you").json() == {"greeting": "fake greets you"}


def test_it_is_closed_counted_and_described() -> None:
    app, _ = app_for(apis=[served(NotesApi(None), Notes())], api_key=("key",))
    assert send(app, "POST", "/notes", {"word": "a"}).status_code == 401
    answer = send(app, "POST", "/notes", {"word": "a"}, authorization="Bearer key")
    assert answer.json() == {"words": ["a"]}
    page = send(app, "GET", "/metrics", x_api_key="key").text
    assert 'method="POST",route="/notes",status="200"} 1.0' in page
    described = send(app, "GET", "/openapi.json", x_api_key="key").json()["paths"]
    assert described["/notes"]["post"]["description"] == "Keep a word."
    assert "/dev_notes" not in described


def test_its_errors_are_its_own_on_its_paths_alone() -> None:
    app, _ = app_for(apis=[served(NotesApi(None), Notes())], api_key=("key",))
    named = {"x_api_key": "key", "x_request_id": "one"}
    assert send(app, "POST", "/notes", {}, **named).json() == {
        "oh": "word: Field required",
        "status": 400,
        "id": "one",
    }
    assert send(app, "POST", "/notes/more", {}, **named).json()["status"] == 404
    assert send(app, "POST", "/notes", {}).json()["status"] == 401
    assert "error" in send(app, "POST", "/notesome", {}, **named).json()


def test_a_flag_switches_a_route_on() -> None:
    app, _ = app_for(apis=[served(NotesApi(None), Notes())])
    message = send(app, "POST", "/dev_notes", {"word": "a"}).json()["oh"]
    assert message.endswith("started with --enable-dev-endpoints.")
    app, _ = app_for(apis=[served(NotesApi(None), Notes())], enable_dev_endpoints=True)
    assert send(app, "POST", "/dev_notes", {"word": "a"}).json() == {"words": ["a"]}


def test_a_task_that_the_model_cannot_do() -> None:
    class Embeds(NotesApi):
        task = "embed"

    app, _ = app_for(apis=[served(Embeds(None), Notes())])
    answer = send(app, "POST", "/notes", {"word": "a"})
    assert answer.status_code == 404
    assert 'needs a model that can "embed"' in answer.json()["oh"]


def test_a_state_lives_as_long_as_the_block() -> None:
    async def state() -> Notes:
        async with opened_apis({"notes": NotesApi(NotesApi.Options())}, FrontendConfig()) as apis:
            notes: Notes = apis[0].state
            assert not notes.is_closed
        return notes

    assert asyncio.run(state()).is_closed


def test_two_states_of_one_type() -> None:
    twice = [served(NotesApi(None), Notes()), served(NotesApi(None), Notes())]
    with pytest.raises(ConfigError, match="another family's, Notes"):
        states_of(twice)


def test_what_cannot_be_served_beside_the_others() -> None:
    class Models(Api):
        info = Info(summary="claims a path")
        routes = (Route(method="GET", path="/v1/models", endpoint=add_word),)

    with pytest.raises(ConfigError, match="already a route of the API models"):
        check_routes(build_apis() | {"mine": Models(None)})

    class Flagged(Api):
        info = Info(summary="asks for a flag")
        routes = (Route(method="GET", path="/mine", endpoint=add_word, flag="enable_mine"),)

    with pytest.raises(ConfigError, match='"enable_mine", which is not a flag'):
        check_routes({"mine": Flagged(None)})


def test_api_names_a_family() -> None:
    chosen = choose_apis(config_with(f"{__file__}:NotesApi"))
    *own, notes = build_apis(chosen).values()
    assert len(own) == len(own_apis())
    assert type(notes).__name__ == "NotesApi"
    with pytest.raises(PluginError, match="no_such_api"):
        choose_apis(config_with("no_such_api"))


def test_options_stand_under_the_name() -> None:
    path = f"{__file__}:NotesApi"
    options = PluginConfig(plugin_options={"api": {path: {"first_word": "a"}}})
    config = Config(frontend=FrontendConfig(api=(path,)), plugin=options)
    check_choices(config)
    assert build_apis(choose_apis(config))[path].options.first_word == "a"


def test_an_own_family_gets_its_options_without_being_named() -> None:
    options = PluginConfig(plugin_options={"api": {"messages": {"keep_billing_line": True}}})
    chosen = choose_apis(Config(plugin=options))
    assert build_apis(chosen)["messages"].options.keep_billing_line
    assert [*build_apis(chosen)] == [*build_apis()]
    wrong = PluginConfig(plugin_options={"api": {"messages": {"no_such_option": 1}}})
    with pytest.raises(ConfigError, match="no_such_option"):
        choose_apis(Config(plugin=wrong))


def test_naming_one_of_dovetails_own_changes_nothing() -> None:
    chosen = choose_apis(config_with("chat"))
    assert [*build_apis(chosen)] == [*build_apis()]


def test_an_own_family_is_left_out_by_name() -> None:
    catalog = Catalog()
    catalog.block(["api:ollama"])
    names = {entry.name for entry in catalog.entries("api")}
    assert "chat" in names and "ollama" not in names
