"""Imports of plugin code: modules by name, files by path, and the classes a file registers.

A file is imported once per process under a stable module name made from its path.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.machinery import ModuleSpec
from pathlib import Path
from types import ModuleType
from typing import Any, TypeVar

from dovetail.errors import BrokenPlugin, ConfigError, DovetailError
from dovetail.registry import moved
from dovetail.registry.entry import Entry
from dovetail.registry.foreign_files import Importer, imported_roots, package_advice
from dovetail.registry.kinds import kind_named

Registered = TypeVar("Registered")
ImporterOf = Callable[[set[str]], Importer | None]
"""Returns the importer for files that import these top-level modules; None: Python's own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Registration:
    """One registration by `@register(kind, name)`, in the module `module`."""

    kind: str
    name: str
    module: str
    attribute: str


_replaced: dict[str, Mapping[str, Any]] = {}
"""Modules written for another engine -> the replacements of their classes."""
registrations: list[Registration] = []
"""Every @register of this process, in the order of execution."""


def register(kind: str, name: str) -> Callable[[Registered], Registered]:
    """Return a decorator that registers a class under a name, for files given on the command line.

    The class is returned unchanged; it is checked when it is selected.
    """

    def note(plugin: Registered) -> Registered:
        module = getattr(plugin, "__module__", "")
        attribute = getattr(plugin, "__qualname__", "")
        registration = Registration(kind=kind, name=name, module=module, attribute=attribute)
        if registration not in registrations:
            registrations.append(registration)
        return plugin

    return note


def module_name(path: Path) -> str:
    """Return the stable name under which a plugin file is imported."""
    digest = hashlib.sha256(str(path).encode()).hexdigest()[:10]
    return f"dovetail_file_{path.stem}_{digest}"


def import_file(path: Path, importer_of: ImporterOf = lambda roots: None) -> ModuleType:
    """Import a Python file once. Raises: ConfigError (no file), BrokenPlugin (it raises)."""
    path = path.expanduser().resolve()
    name = module_name(path)
    if name in sys.modules:
        return sys.modules[name]
    if not path.is_file():
        raise ConfigError("there is no such file.", where=str(path), fix="check the path.")
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ConfigError(
            "is not a Python file.", where=str(path), fix="name a file ending in .py."
        )
    return _run(spec, path, importer_of(imported_roots(path)), where=str(path))


def entries_of(path: Path, importer_of: ImporterOf) -> list[Entry]:
    """Import a file and return the entries that its @register decorators made.

    Raises: ConfigError when there is no such file or it registers nothing, BrokenPlugin.
    """
    file = path.expanduser().resolve()
    module = import_file(file, importer_of).__name__
    entries = [
        Entry(
            kind=kind_named(registration.kind).name,
            name=registration.name,
            distribution=file.name,
            target=f"{file}:{registration.attribute}",
            origin="file",
        )
        for registration in registrations
        if registration.module == module
    ]
    if not entries:
        raise ConfigError(
            "the file registers no plugin.",
            where=str(path),
            fix=package_advice(imported_roots(file))
            or 'write @register("<kind>", "<name>") above its class.',
        )
    return entries


def _run(spec: ModuleSpec, path: Path, importer: Importer | None, *, where: str) -> ModuleType:
    """Run the code of a new module, with an importer if there is one. Raises: BrokenPlugin"""
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[spec.name] = module
    try:
        if importer is None:
            spec.loader.exec_module(module)
        else:
            _replaced[spec.name] = importer(module, path) or {}
    except BaseException as error:
        del sys.modules[spec.name]
        if importer is not None and isinstance(error, DovetailError):
            raise
        raise _broken(where, error) from error
    return module


def import_target(target: str, importer_of: ImporterOf = lambda roots: None) -> Any:
    """Return the object that "package.module:attribute" or "/path/file.py:attribute" names.

    Raises: BrokenPlugin when it cannot be imported or lacks the attribute.
    """
    module, _, attribute = target.rpartition(":")
    if not module or not attribute:
        raise BrokenPlugin(
            f'"{target}" names no class.',
            where="the entry point",
            fix="write package.module:Class in the package's entry-point table.",
        )
    found: Any
    if module.endswith(".py"):
        found = import_file(Path(module), importer_of)
    else:
        found = import_module(module, importer_of)
    replaced = _replaced.get(found.__name__, {})
    if attribute in replaced:
        return replaced[attribute]
    for part in attribute.split("."):
        try:
            found = getattr(found, part)
        except AttributeError as error:
            raise BrokenPlugin(
                f'"{module}" has no "{attribute}".',
                where=target,
                fix="name the class after the colon.",
            ) from error
    return found


def import_module(module: str, importer_of: ImporterOf = lambda roots: None) -> ModuleType:
    """Import a module by name; one that imports another engine's modules is run like a file.

    Raises: BrokenPlugin when importing it raises
    """
    try:
        return importlib.import_module(module)
    except KeyboardInterrupt:
        raise
    except BaseException as error:
        importer = _importer_for(error, importer_of)
        if importer is None:
            raise _broken(module, error) from error
    if "." in module:
        import_module(module.rpartition(".")[0], importer_of)
    spec = importlib.util.find_spec(module)
    assert spec is not None
    assert spec.origin is not None
    return _run(spec, Path(spec.origin), importer, where=module)


def _importer_for(error: BaseException, importer_of: ImporterOf) -> Importer | None:
    """Return the importer of the modules that an import did not find, if there is one."""
    if not isinstance(error, ModuleNotFoundError) or not error.name:
        return None
    return importer_of({error.name.partition(".")[0]})


def _broken(module: str, error: BaseException) -> BaseException:
    """Return the error to raise for a module whose import raised."""
    if isinstance(error, KeyboardInterrupt):
        return error
    name = (error.name or "") if isinstance(error, ImportError) else ""
    missing = name if isinstance(error, ModuleNotFoundError) else ""
    fix = f'install what provides "{missing}".' if missing else "mend the file or choose another."
    fix = moved.advice(name) or package_advice({missing.partition(".")[0]}) or fix
    return BrokenPlugin(
        f"importing it raised {type(error).__name__}: {error}.", where=module, fix=fix
    )
