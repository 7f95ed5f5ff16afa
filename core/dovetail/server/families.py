"""Which families of endpoints a server has: dovetail's own, and what --api names.

An installed family is served only when it is named: a package that is installed for something else
opens no path.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from dovetail import registry
from dovetail.config.config import Config, flags
from dovetail.config.sections.field import flags_of
from dovetail.config.sections.frontend import FrontendConfig
from dovetail.errors import ConfigError
from dovetail.interfaces.api import Api
from dovetail.interfaces.spec import EngineSpec, Selection
from dovetail_plugins.apis.adapters.routes import AdaptersApi
from dovetail_plugins.apis.admin.routes import AdminApi
from dovetail_plugins.apis.audio.routes import AudioApi
from dovetail_plugins.apis.batches.routes import BatchesApi
from dovetail_plugins.apis.chat.routes import ChatApi
from dovetail_plugins.apis.cohere.routes import CohereApi
from dovetail_plugins.apis.completions.routes import CompletionsApi
from dovetail_plugins.apis.embeddings.routes import EmbeddingsApi
from dovetail_plugins.apis.health.routes import HealthApi
from dovetail_plugins.apis.invocations.routes import InvocationsApi
from dovetail_plugins.apis.messages.routes import MessagesApi
from dovetail_plugins.apis.models.routes import ModelsApi
from dovetail_plugins.apis.ollama.routes import OllamaApi
from dovetail_plugins.apis.parse.routes import ParseApi
from dovetail_plugins.apis.pooling.routes import PoolingApi
from dovetail_plugins.apis.profiling.routes import ProfilingApi
from dovetail_plugins.apis.responses.routes import ResponsesApi
from dovetail_plugins.apis.scores.routes import ScoresApi
from dovetail_plugins.apis.settings.routes import SettingsApi
from dovetail_plugins.apis.tei.routes import TeiApi
from dovetail_plugins.apis.tokenize.routes import TokenizeApi
from dovetail_plugins.apis.ui.routes import UiApi

FLAG = "--api"
KIND = "api"

BUILT_IN: dict[str, type[Api]] = {
    "chat": ChatApi,
    "completions": CompletionsApi,
    "audio": AudioApi,
    "responses": ResponsesApi,
    "messages": MessagesApi,
    "ollama": OllamaApi,
    "embeddings": EmbeddingsApi,
    "pooling": PoolingApi,
    "scores": ScoresApi,
    "cohere": CohereApi,
    "tei": TeiApi,
    "models": ModelsApi,
    "adapters": AdaptersApi,
    "invocations": InvocationsApi,
    "parse": ParseApi,
    "tokenize": TokenizeApi,
    "health": HealthApi,
    "batches": BatchesApi,
    "admin": AdminApi,
    "profiling": ProfilingApi,
    "settings": SettingsApi,
    "ui": UiApi,
}
"""Served always; a route with a flag, where the flag is on."""


ENGINE_SWITCHES: dict[str, Callable[[EngineSpec], bool]] = {
    "profiler_config": lambda spec: spec.run.profile is not None,
}
"""Flags of the engine that routes may ask for -> whether a server has them on."""


def is_on(flag: str | None, frontend: FrontendConfig, spec: EngineSpec) -> bool:
    """Return whether a server has the routes of a flag."""
    if flag is None:
        return True
    of_engine = ENGINE_SWITCHES.get(flag)
    return bool(getattr(frontend, flag)) if of_engine is None else of_engine(spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedApi:
    """A family with its state entered; `name` is the one it was chosen by."""

    name: str
    api: Api
    state: Any = None


def choose_apis(config: Config) -> tuple[Selection, ...]:
    """Return the families that --api names, as data for every process. Raises: PluginError,
    ConfigError"""
    options = config.plugin.options_of(KIND)
    chosen = {
        picked.target: picked
        for picked in (
            registry.choose(KIND, name, options=options.get(name), where=FLAG)
            for name in config.frontend.api
        )
    }
    build_apis(tuple(chosen.values()))
    return tuple(chosen.values())


def build_apis(chosen: Iterable[Selection] = ()) -> dict[str, Api]:
    """Return the families by name, dovetail's own first.

    Raises: PluginError; ConfigError for a route that two families claim, or a flag that is not one
    """
    apis: dict[str, Api] = {name: cls(cls.Options()) for name, cls in BUILT_IN.items()}
    for selection in chosen:
        cls = registry.load_selection(selection)
        if cls not in BUILT_IN.values():
            apis[selection.name] = registry.make(selection)
    check_routes(apis)
    return apis


def check_routes(apis: Mapping[str, Api]) -> None:
    """Raise ConfigError for a route that two families claim, and for a flag that is not one."""
    owners: dict[tuple[str, str], str] = {}
    switches = {None, *ENGINE_SWITCHES, *(flag.name for flag in flags_of(FrontendConfig))}
    for name, api in apis.items():
        for route in api.routes:
            where = f"{FLAG} {name}"
            owner = owners.setdefault((route.method, route.path), name)
            if owner != name:
                raise ConfigError(
                    f"{route.method} {route.path} is already a route of the API {owner}.",
                    where=where,
                    fix="leave one of them out, or give the endpoint another path.",
                )
            if route.flag not in switches:
                raise ConfigError(
                    f'{route.path} asks for "{route.flag}", which is not a flag of the HTTP '
                    "server.",
                    where=where,
                    fix="name a field of FrontendConfig, or none.",
                )


@asynccontextmanager
async def opened_apis(
    apis: Mapping[str, Api], frontend: FrontendConfig
) -> AsyncIterator[list[ServedApi]]:
    """Give the families with their states, which end with the block. Raises: ConfigError"""
    async with AsyncExitStack() as owned:
        yield [
            ServedApi(
                name=name,
                api=api,
                state=await owned.enter_async_context(api.state(frontend)),
            )
            for name, api in apis.items()
        ]


def states_of(apis: Sequence[ServedApi]) -> dict[type[Any], Any]:
    """Return the states by their types. Raises: ConfigError for a type that two families use"""
    states: dict[type[Any], Any] = {}
    for served in apis:
        kind = type(served.state)
        if served.state is not None and kind in states:
            raise ConfigError(
                f"its state has the type of another family's, {kind.__name__}.",
                where=f"{FLAG} {served.name}",
                fix="give the state its own class.",
            )
        states[kind] = served.state
    return states


def flags_by_path(apis: Iterable[Api]) -> dict[str, str]:
    """Return path -> how a server is started that has it: "with --flag", or "without --no-flag"
    where it is on unless that is given."""
    routes = [route for api in apis for route in api.routes]
    return {r.path: needed(r.flag) for r in routes if r.flag is not None}


def needed(name: str) -> str:
    """Return how a server is started that has the routes of a flag."""
    flag = flags()[name]
    return f"without --no-{flag.spelling[2:]}" if flag.default is True else f"with {flag.spelling}"
