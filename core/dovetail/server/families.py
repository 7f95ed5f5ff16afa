"""The endpoint families of a server: dovetail's own, and those named with --api.

A family of another package is served only when --api names it. Installing a package for some other
purpose never opens a path.
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
from dovetail.interfaces.data.spec import EngineSpec, Selection

FLAG = "--api"
KIND = "api"

ENGINE_SWITCHES: dict[str, Callable[[EngineSpec], bool]] = {
    "profiler_config": lambda spec: spec.run.profile is not None,
}
"""Engine flags that routes may depend on -> whether a server has them turned on."""


def is_on(flag: str | None, frontend: FrontendConfig, spec: EngineSpec) -> bool:
    """Return whether a server has the routes that depend on a flag."""
    if flag is None:
        return True
    of_engine = ENGINE_SWITCHES.get(flag)
    return bool(getattr(frontend, flag)) if of_engine is None else of_engine(spec)


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedApi:
    """A family whose state is open. `name` is the name it was selected by."""

    name: str
    api: Api
    state: Any = None


def own_apis() -> tuple[Selection, ...]:
    """Return dovetail's own families, which are always served. Imports none of them."""
    return tuple(
        registry.admin.selection_of(entry, {}) for entry in registry.entries(KIND) if entry.is_own
    )


def choose_apis(config: Config) -> tuple[Selection, ...]:
    """Return a server's families, dovetail's own first, as data for every process.

    Raises: PluginError for an unknown name in --api, ConfigError for a path that two routes claim
    """
    options = config.plugin.options_of(KIND)
    chosen = {own.target: own for own in own_apis()}
    for name in [*(o.name for o in chosen.values() if o.name in options), *config.frontend.api]:
        named = registry.choose(KIND, name, options=options.get(name), where=FLAG)
        chosen[named.target] = named
    if config.frontend.api:
        build_apis(chosen.values())
    return tuple(chosen.values())


def build_apis(chosen: Iterable[Selection] | None = None) -> dict[str, Api]:
    """Return the families by name; dovetail's own if `chosen` is None.

    Raises: PluginError; ConfigError for a route that two families claim, or for an unknown flag
    """
    selections = own_apis() if chosen is None else chosen
    apis: dict[str, Api] = {one.name: registry.make(one) for one in selections}
    check_routes(apis)
    return apis


def check_routes(apis: Mapping[str, Api]) -> None:
    """Raise ConfigError if two families claim a route, or a route names an unknown flag."""
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
    """Yield the families with open states, which are closed at the end. Raises: ConfigError"""
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
    """Return the states by type. Raises: ConfigError if two families use the same type"""
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
    """Return path -> the flag that adds it: "with --flag", or "without --no-flag". The second form
    is for flags that are on by default."""
    routes = [route for api in apis for route in api.routes]
    return {r.path: needed(r.flag) for r in routes if r.flag is not None}


def needed(name: str) -> str:
    """Return which flag a server needs, or must not have, to serve these routes."""
    flag = flags()[name]
    return f"without --no-{flag.spelling[2:]}" if flag.default is True else f"with {flag.spelling}"
