"""Events that many plugins may listen to: pluggy hooks, entry-point group "dovetail.hooks".

The registry handles what is chosen by name; a hook module is only notified. A hook that cannot be
imported or raises is logged and skipped: nobody selected it, so it must not stop anything.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from functools import cache
from typing import Any

import pluggy

from dovetail.errors import DovetailError
from dovetail.interfaces.data.spec import Selection
from dovetail.registry import files
from dovetail.registry.registry import default, selection_of

logger = logging.getLogger("dovetail.registry")

hookspec = pluggy.HookspecMarker("dovetail")
hookimpl = pluggy.HookimplMarker("dovetail")
"""Marks a function of a hook module: @hookimpl."""


@hookspec
def add_routes(app: Any) -> None:
    """Add routes to the HTTP server. `app` is the FastAPI application; new routes are closed to
    clients without the key unless they are declared open."""


@hookspec
def config_resolved(spec: Any) -> None:
    """Called with the resolved EngineSpec, in the parent, before the engine starts."""


@hookspec
def engine_started(spec: Any) -> None:
    """Called in the API process once the engine answers."""


@hookspec
def engine_stopped(reason: str | None) -> None:
    """Called when the engine has ended; `reason` is None after an orderly shutdown."""


@hookspec
def request_finished(stats: Any) -> None:
    """Called with the RequestStats of a finished request, in the API process."""


@hookspec
def environment_facts() -> dict[str, str]:
    """Return name -> fact to show in `dovetail collect-env`: on a device, a driver, a service."""
    return {}


class _Specifications:
    """The events in the form pluggy expects: attributes of one object."""

    add_routes = staticmethod(add_routes)
    config_resolved = staticmethod(config_resolved)
    engine_started = staticmethod(engine_started)
    engine_stopped = staticmethod(engine_stopped)
    request_finished = staticmethod(request_finished)
    environment_facts = staticmethod(environment_facts)


def selections() -> tuple[Selection, ...]:
    """Return the hook modules of this environment as data; imports none of them."""
    return tuple(selection_of(entry, {}) for entry in default.catalog.hook_entries())


@cache
def manager() -> pluggy.PluginManager:
    """Return this process's plugin manager with every discovered hook module registered."""
    return manager_of(selections())


def manager_of(chosen: Iterable[Selection]) -> pluggy.PluginManager:
    """Return a new manager with these hook modules (a child passes its EngineSpec's)."""
    manager = pluggy.PluginManager("dovetail")
    manager.add_hookspecs(_Specifications)
    for selection in chosen:
        _add(manager, selection)
    return manager


def tell(
    event: Callable[..., Any],
    facts: Mapping[str, Any],
    *,
    using: pluggy.PluginManager | None = None,
) -> list[Any]:
    """Call every listener of an event, each guarded, and return their results that are not None.

    `tell(hooks.engine_started, {"spec": spec})`. A listener that raises is logged by name and the
    next one is called.
    """
    caller = getattr((using or manager()).hook, event.__name__)
    answers = []
    for implementation in reversed(caller.get_hookimpls()):
        arguments = [facts[name] for name in implementation.argnames]
        try:
            answers.append(implementation.function(*arguments))
        except Exception:
            logger.exception("hook %s of %s raised", event.__name__, implementation.plugin_name)
    return [answer for answer in answers if answer is not None]


def _add(manager: pluggy.PluginManager, selection: Selection) -> None:
    name = f"{selection.name}@{selection.distribution}"
    try:
        load = files.import_target if ":" in selection.target else files.import_module
        manager.register(load(selection.target), name=name)
        manager.check_pending()
    except (DovetailError, pluggy.PluginValidationError) as error:
        manager.set_blocked(name)
        logger.error("hooks %s are left out: %s", name, error)
