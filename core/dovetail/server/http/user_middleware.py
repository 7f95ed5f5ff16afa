"""--middleware: the user's ASGI middleware, by import path.

A class is called with the application, an async function with a request and `call_next`. Both are
imported and checked at start, before the engine loads.
"""

from __future__ import annotations

import inspect
from typing import Any

from fastapi import FastAPI
from starlette.middleware.base import BaseHTTPMiddleware

from dovetail import registry
from dovetail.config.sections.frontend import FrontendConfig
from dovetail.errors import BrokenPlugin, ConfigError
from dovetail.registry.files import import_target

FLAG = "--middleware"
_FIX = "name an ASGI class, or an async function of request and call_next: package.module.NAME."


def load_middleware(frontend: FrontendConfig) -> list[Any]:
    """Return the middleware of --middleware, in order. Raises: ConfigError"""
    return [_checked(path, _find(path)) for path in frontend.middleware]


def add_middleware(app: FastAPI, frontend: FrontendConfig) -> None:
    """Wrap the application in the named middleware, the last one outermost. Mutates: app"""
    for found in load_middleware(frontend):
        if inspect.iscoroutinefunction(found):
            app.add_middleware(BaseHTTPMiddleware, dispatch=found)
        else:
            app.add_middleware(found)


def _find(path: str) -> Any:
    if path in registry.names("middleware"):
        return registry.admin.value_of("middleware", path)
    module, separator, name = path.rpartition(":" if ":" in path else ".")
    if not separator or not module or not name:
        raise ConfigError(f'"{path}" is not an import path.', where=FLAG, fix=_FIX)
    try:
        return import_target(f"{module}:{name}")
    except (BrokenPlugin, ConfigError) as error:
        raise ConfigError(f"{path}: {error.what}", where=FLAG, fix=error.fix) from error


def _checked(path: str, found: Any) -> Any:
    """Return the object if it can be called as middleware. Raises: ConfigError"""
    args: tuple[str, ...]
    if inspect.isclass(found):
        needs, args = "a class must take the application alone", ("app",)
    elif inspect.iscoroutinefunction(found):
        needs, args = "a function must take request and call_next", ("request", "call_next")
    else:
        raise ConfigError(f"{path} is neither a class nor an async function.", where=FLAG, fix=_FIX)
    try:
        inspect.signature(found).bind(*args)
    except (TypeError, ValueError) as error:
        raise ConfigError(f"{path}: {needs} ({error}).", where=FLAG, fix=_FIX) from error
    return found
