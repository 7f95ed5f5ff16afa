"""Finds which other package's plugin raised an error, for all code that runs plugins.

It is in the traceback: the deepest frame in the package or the file of a plugin that this process
has loaded. Errors of dovetail's own are passed on unchanged, because they explain themselves.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from types import FrameType

from dovetail.errors import BrokenPlugin, DovetailError
from dovetail.registry import admin
from dovetail.registry.entry import Entry


@contextmanager
def blaming(doing: str) -> Iterator[None]:
    """Name the plugin whose code raises inside a with block; `doing` says what is done, as "loading
    the model".

    Raises: BrokenPlugin instead of an error that is not one of dovetail's own. Out-of-memory errors
    are no plugin's fault and are passed on.
    """
    try:
        yield
    except DovetailError:
        raise
    except Exception as error:
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            raise
        loaded = admin.foreign()
        culprit = _at_fault(error, loaded)
        if culprit is not None:
            raise broken(culprit, doing, error) from error
        if loaded:
            names = ", ".join(_named(one) for one in loaded)
            error.add_note(f"Plugins of other packages that are loaded: {names}")
        raise


def broken(plugin: Entry, doing: str, error: Exception) -> BrokenPlugin:
    """Return the error that names a plugin which raised another."""
    return BrokenPlugin(
        f"{doing} raised {type(error).__name__}: {error}.",
        where=f"{plugin.kind} {plugin.name}",
        fix=f"mend {_place(plugin)}, or choose another.",
    )


def described(error: BaseException) -> str:
    """Return an error's class and text, with the other package's plugin that raised it."""
    text = f"{type(error).__name__}: {error}"
    culprit = raised_by(error)
    return text if culprit is None else f"{text} ({culprit})"


def raised_by(error: BaseException) -> str | None:
    """Return "raised by" and the other package's plugin whose code raised an error."""
    culprit = _at_fault(error, admin.foreign())
    return None if culprit is None else f"raised by {_named(culprit)}"


def _named(plugin: Entry) -> str:
    place = _place(plugin)
    is_named = plugin.origin == "path"  # its name is its location
    return f"{plugin.kind} {place}" if is_named else f"{plugin.kind} {plugin.name}, {place}"


def _place(plugin: Entry) -> str:
    """Return the location of the plugin's code, with its package if it is installed."""
    is_file = plugin.origin in ("path", "file")
    return plugin.target if is_file else f"{plugin.target} of {plugin.distribution}"


def _at_fault(error: BaseException, loaded: list[Entry]) -> Entry | None:
    """Return the plugin whose code raised the error, or called what raised it."""
    if not loaded:
        return None
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for frame in reversed(frames):
        module, file = frame.f_globals.get("__name__", ""), frame.f_code.co_filename
        near = [one for one in loaded if _is_near(one, module, file)]
        exact = [one for one in near if one.module in (module, file)]
        if near:
            return _named_in(frames, exact or near)
    return None


def _named_in(frames: list[FrameType], plugins: list[Entry]) -> Entry:
    """Return the plugin of one package whose class's code is in a traceback, or the first."""
    classes = {frame.f_code.co_qualname.partition(".")[0] for frame in frames}
    return next((one for one in plugins if one.attribute in classes), plugins[0])


def _is_near(plugin: Entry, module: str, file: str) -> bool:
    """Return whether code belongs to a plugin's file or package."""
    if plugin.module.endswith(".py"):
        return plugin.module == file
    root = plugin.module.partition(".")[0]
    return module == root or module.startswith(f"{root}.")
