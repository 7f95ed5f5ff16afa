"""The families of endpoints that a server has: dovetail's own, and the ones that --api names.

Another package's family is served only when --api names it: a package that is installed for
something else opens no path.
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

FLAG = "--api"
KIND = "api"

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


def own_apis() -> tuple[Selection, ...]:
    """Return the families that are served without being named: dovetail's own. Imports none."""
    return tuple(
        registry.selection_of(entry, {}) for entry in registry.entries(KIND) if entry.is_own
    )


def choose_apis(config: Config) -> tuple[Selection, ...]:
    """Return the families of a server, dovetail's own first, as data for every process.

    Raises: PluginError for a name that --api gives, ConfigError for two routes of one path
    """
    options = config.plugin.options_of(KIND)
    chosen = {own.target: own for own in own_apis()}
    for name in config.frontend.api:
        named = registry.choose(KIND, name, options=options.get(name), where=FLAG)
        chosen[named.target] = named
    if config.frontend.api:
        build_apis(chosen.values())
    return tuple(chosen.values())


def build_apis(chosen: Iterable[Selection] | None = None) -> dict[str, Api]:
    """Return the families by name; without any chosen, dovetail's own.

    Raises: PluginError; ConfigError for a route that two families claim, or a flag that is not one
    """
    selections = own_apis() if chosen is None else chosen
    apis: dict[str, Api] = {one.name: registry.make(one) for one in selections}
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
