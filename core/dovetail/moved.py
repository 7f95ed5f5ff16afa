"""Where modules and names of dovetail went that packages of others may still import.

One table, NAMES. An old module can be imported: its names come from where they are now, and a
warning says where that is. Imports nothing of dovetail.
"""

from __future__ import annotations

import importlib
import sys
import warnings
from collections.abc import Callable, Sequence
from importlib.abc import Loader, MetaPathFinder
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

PAGE = "docs/how_to/upgrade_a_plugin.md"

NAMES = {
    "dovetail.interfaces.form": "dovetail.interfaces.constraint",
    "dovetail.interfaces.form.Form": "dovetail.interfaces.constraint.Constraint",
    "dovetail.interfaces.form.Free": "dovetail.interfaces.constraint.FreeText",
    "dovetail.interfaces.form.Json": "dovetail.interfaces.constraint.JsonSchema",
    "dovetail.interfaces.form.Pattern": "dovetail.interfaces.constraint.Regex",
    "dovetail.interfaces.form.Sequence": "dovetail.interfaces.constraint.Concat",
    "dovetail.interfaces.form.decode_form": "dovetail.interfaces.constraint.decode_constraint",
    "dovetail.interfaces.form.divided": "dovetail.interfaces.constraint.separated",
    "dovetail.interfaces.form.encode_form": "dovetail.interfaces.constraint.encode_constraint",
    "dovetail.interfaces.form.sequence": "dovetail.interfaces.constraint.concat",
    "dovetail.interfaces.guided": "dovetail.interfaces.structured_output",
    "dovetail.interfaces.guided.Compiled": "dovetail.interfaces.structured_output.LoadedConstraint",
    "dovetail.interfaces.guided.Guide": "dovetail.interfaces.structured_output.AnswerConstraint",
    "dovetail.interfaces.guided.GuidedBackend": "dovetail.interfaces.structured_output."
    "StructuredOutputBackend",
    "dovetail.interfaces.guided.InvalidForm": "dovetail.interfaces.structured_output."
    "InvalidConstraint",
    "dovetail.interfaces.guided.Refusal": "dovetail.interfaces.structured_output.UnsupportedPart",
    "dovetail.registry.known": "dovetail.registry.unsupported_names",
    "dovetail.registry.known.KNOWN": "dovetail.registry.unsupported_names.UNSUPPORTED_NAMES",
    "dovetail.registry.known.reason_for": "dovetail.registry.unsupported_names.why_unsupported",
    "dovetail.testing.cuts": "dovetail.testing.text_splits",
    "dovetail.testing.drive": "dovetail.testing.scripted_steps",
    "dovetail.testing.forms": "dovetail.testing.constraint_examples",
    "dovetail.testing.fresh": "dovetail.testing.isolated_import",
    "dovetail.testing.scene": "dovetail.testing.attention_scenario",
    "dovetail.testing.walks": "dovetail.testing.random_walks",
}
"""Old dotted name -> new one, of a folder with all that it holds, of a module, or of one name. An
old name in a module that is still there needs a line in that module:
`__getattr__ = moved.attributes(__name__)`."""


def new_name(old: str) -> str | None:
    """Return the name that something has now: its own entry decides, else that of what held it."""
    head, rest = old, ""
    while head:
        if head in NAMES:
            return NAMES[head] + rest
        head, _, last = head.rpartition(".")
        rest = f".{last}{rest}"
    return None


def attributes(module: str) -> Callable[[str], Any]:
    """Return the `__getattr__` of a module that other packages know names of which have moved."""

    def find(name: str) -> Any:
        new = new_name(f"{module}.{name}")
        if new is None or name.startswith("__"):
            raise AttributeError(f"module {module!r} has no attribute {name!r}")
        home, _, attribute = new.rpartition(".")
        found = getattr(importlib.import_module(home), attribute)
        _warn(f"{module}.{name}", new)
        return found

    return find


class _OldModules(MetaPathFinder, Loader):
    """Finds modules by the names that they had; is asked last, for what nothing else finds."""

    def find_spec(
        self, fullname: str, path: Sequence[str] | None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Return the spec of a module that has another name now."""
        if new_name(fullname) is None:
            return None
        return ModuleSpec(fullname, self, is_package=True)

    def exec_module(self, module: ModuleType) -> None:
        """Let a module of the old name give what the new one has. Mutates: module"""
        new = new_name(module.__name__)
        assert new is not None
        now = importlib.import_module(new)
        _warn(module.__name__, new)
        module.__doc__ = now.__doc__
        vars(module)["__all__"] = [name for name in dir(now) if not name.startswith("_")]
        vars(module)["__getattr__"] = attributes(module.__name__)


def _warn(old: str, new: str) -> None:
    """Say where an entry of the table is now, not once more for each part of a folder."""
    if old in NAMES:
        what = f"{old} is {new} now; {PAGE} says what changed."
        warnings.warn(what, FutureWarning, stacklevel=3)


def install() -> None:
    """Let old names be imported. Mutates: sys.meta_path, once"""
    if not any(isinstance(finder, _OldModules) for finder in sys.meta_path):
        sys.meta_path.append(_OldModules())
