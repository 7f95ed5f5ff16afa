"""Which plugin raised an error: for all that runs code of plugins that others wrote.

The traceback says it: the deepest frame that lies in a chosen plugin's package or file. Errors of
dovetail's own are passed on as they are, since they say what is wrong themselves.
"""

from __future__ import annotations

import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import msgspec

from dovetail.errors import BrokenPlugin, DovetailError
from dovetail.interfaces.selection import Selection
from dovetail.registry.entry import BUILT_IN
from dovetail.registry.names import normal


@contextmanager
def blaming(doing: str, chosen: Any) -> Iterator[None]:
    """Name the plugin whose code raises inside a with block. `chosen` holds Selections, at any
    depth; `doing` says what is done, as "loading the model".

    Raises: BrokenPlugin in place of an error that is none of dovetail's own. That memory ran out is
    no plugin's fault, and passed on.
    """
    try:
        yield
    except DovetailError:
        raise
    except Exception as error:
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            raise
        found = list(_foreign(chosen))
        culprit = _at_fault(error, found)
        if culprit is not None:
            raise BrokenPlugin(
                f"{doing} raised {type(error).__name__}: {error}.",
                where=f"{culprit.kind} {culprit.name}",
                fix=f"mend {culprit.target}, or choose another.",
            ) from error
        if found:
            names = ", ".join(f"{one.kind} {one.name} ({one.target})" for one in found)
            error.add_note(f"Plugins in use that are not dovetail's own: {names}")
        raise


def _foreign(chosen: Any) -> Iterator[Selection]:
    """Yield the selections of plugins that are not dovetail's own."""
    if isinstance(chosen, Selection):
        if normal(chosen.distribution) != normal(BUILT_IN):
            yield chosen
    elif isinstance(chosen, msgspec.Struct):
        for name in chosen.__struct_fields__:
            yield from _foreign(getattr(chosen, name))
    elif isinstance(chosen, tuple):
        for one in chosen:
            yield from _foreign(one)


def _at_fault(error: Exception, chosen: list[Selection]) -> Selection | None:
    """Return the plugin in whose code the error was raised, or that called what raised it."""
    frames = [frame for frame, _ in traceback.walk_tb(error.__traceback__)]
    for frame in reversed(frames):
        module, file = frame.f_globals.get("__name__", ""), frame.f_code.co_filename
        near = [one for one in chosen if _is_near(one, module, file)]
        exact = [one for one in near if _module(one) in (module, file)]
        if near:
            return (exact or near)[0]
    return None


def _module(selection: Selection) -> str:
    return selection.target.rpartition(":")[0]


def _is_near(selection: Selection, module: str, file: str) -> bool:
    """Return whether code is of a plugin's file, or of its package."""
    own = _module(selection)
    if own.endswith(".py"):
        return own == file
    root = own.partition(".")[0]
    return module == root or module.startswith(f"{root}.")
