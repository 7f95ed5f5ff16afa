"""Checks that a loaded plugin fulfils its interface.

Base class, interface version, abstract methods, parameter names, and the declarations `info`,
`Options`, `capabilities`, `expected_failures`.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Iterator, Mapping
from typing import Any

from dovetail.errors import BrokenPlugin
from dovetail.interfaces.plugin import Info, Plugin, Value
from dovetail.moved import PAGE
from dovetail.registry.kinds import interface_of, kind_named
from dovetail.registry.moved import METHODS, changes
from dovetail.registry.value_rules import value_fault

_VARIADIC = (inspect.Parameter.VAR_POSITIONAL, inspect.Parameter.VAR_KEYWORD)


def verify(kind: str, plugin: Any, target: str) -> None:
    """Raise BrokenPlugin with every fault of a loaded plugin; return when there is none."""
    faults = list(
        value_faults(kind, plugin) if kind_named(kind).is_value else class_faults(kind, plugin)
    )
    if faults:
        raise BrokenPlugin(
            f"is not a valid {kind}: {'; '.join(faults)}.",
            where=target,
            fix=f"see {kind_named(kind).interface} for the interface.",
        )


def value_faults(kind: str, plugin: Any) -> Iterator[str]:
    """Yield what is wrong with the plugin of a value kind."""
    if not isinstance(plugin, Value):
        yield f"it is {type(plugin).__name__}, not an instance of dovetail.interfaces.Value"
        return
    yield from _version_faults(kind, plugin.interface_version, Value.interface_version)
    yield from _sentence_faults("summary", plugin.summary)
    fault = value_fault(kind, plugin.value)
    if fault is not None:
        yield fault


def class_faults(kind: str, plugin: Any) -> Iterator[str]:
    """Yield what is wrong with a plugin class."""
    interface = interface_of(kind)
    if not inspect.isclass(plugin):
        yield f"it is {type(plugin).__name__}, not a class"
    elif not issubclass(plugin, interface) or not issubclass(plugin, Plugin):
        yield f"it does not derive from {interface.__module__}.{interface.__qualname__}"
    else:
        yield from _version_faults(kind, plugin.interface_version, interface.interface_version)
        yield from _abstract_faults(plugin)
        yield from _moved_faults(kind, plugin)
        yield from _sort_faults(plugin, interface)
        yield from _method_faults(plugin, _own_interface(plugin, interface))
        yield from _declaration_faults(plugin)


def _own_interface(plugin: type[Plugin], interface: type[Any]) -> type[Any]:
    """Return the interface class that a plugin derives from: one of the kind's variants, if there
    are several."""
    bases = (base for base in plugin.__mro__ if base.__module__ == interface.__module__)
    return next(base for base in bases if issubclass(base, interface))


def _sort_faults(plugin: type[Plugin], interface: type[Any]) -> Iterator[str]:
    """Yield a fault if a plugin derives from none of its kind's variants."""
    sorts = [s for s in interface.__subclasses__() if s.__module__ == interface.__module__]
    if sorts and _own_interface(plugin, interface) is interface:
        names = " or ".join(sort.__name__ for sort in sorts)
        yield f"it derives from {interface.__name__}, and should from {names}"


def _version_faults(kind: str, has: object, wants: int) -> Iterator[str]:
    if type(has) is not int:
        yield f"interface_version is {has!r}, not a whole number"
    elif has > wants:
        yield (
            f"it is written for version {has} of the interface, and this dovetail has version "
            f"{wants}; install a newer dovetail"
        )
    elif has < wants:
        what = changes(kind, has, wants).rstrip(".")
        yield (
            f"it is written for version {has} of the interface, and this is version {wants}"
            f"{': ' * bool(what)}{what} ({PAGE} has more)"
        )


def _moved_faults(kind: str, cls: type[Plugin]) -> Iterator[str]:
    """Yield a fault for each method that is no longer called."""
    own = set(_own_methods(cls))
    for name, instead in METHODS.get(kind, {}).items():
        if name in own:
            yield f"{name}() is not called any more; in its place there is {instead}"


def _abstract_faults(cls: type[Plugin]) -> Iterator[str]:
    missing = sorted(cls.__abstractmethods__)
    if missing:
        yield f"it does not implement {', '.join(missing)}"


def _method_faults(cls: type[Plugin], interface: type[Any]) -> Iterator[str]:
    promised = set(_methods(interface))
    for name in sorted(promised - cls.__abstractmethods__):
        yield from _signature_faults(name, cls, interface)
    for name in sorted(set(_own_methods(cls)) - promised):
        for parameter in _parameters(cls, name):
            if parameter.kind in _VARIADIC:
                yield f"{name}() takes {parameter}, which hides what it accepts"


def _methods(cls: type[Any]) -> Iterator[str]:
    """Yield the public methods and __init__ that the interface and its bases define."""
    for base in cls.__mro__[:-1]:
        if issubclass(base, Plugin):
            yield from _functions(base)


def _own_methods(cls: type[Plugin]) -> Iterator[str]:
    """Yield the public methods that plugin classes define; foreign bases are not checked."""
    for base in cls.__mro__:
        if issubclass(base, Plugin):
            yield from _functions(base)


def _functions(cls: type[Any]) -> Iterator[str]:
    for name, member in vars(cls).items():
        is_function = inspect.isfunction(member) or isinstance(member, classmethod | staticmethod)
        if is_function and (name == "__init__" or not name.startswith("_")):
            yield name


def _signature_faults(name: str, cls: type[Plugin], interface: type[Any]) -> Iterator[str]:
    ours = inspect.getattr_static(cls, name, None)
    theirs = inspect.getattr_static(interface, name)
    if ours is theirs:
        return
    if isinstance(ours, classmethod) is not isinstance(theirs, classmethod):
        yield f"{name} must {'' if isinstance(theirs, classmethod) else 'not '}be a classmethod"
        return
    if not callable(getattr(cls, name)):
        yield f"{name} is not a method"
        return
    yield from _parameter_faults(name, _parameters(cls, name), _parameters(interface, name))


def _parameters(cls: type[Any], name: str) -> list[inspect.Parameter]:
    """Return a method's parameters without self or cls."""
    bound = isinstance(inspect.getattr_static(cls, name), classmethod | staticmethod)
    parameters = list(inspect.signature(getattr(cls, name)).parameters.values())
    return parameters if bound else parameters[1:]


def _parameter_faults(
    name: str, ours: list[inspect.Parameter], theirs: list[inspect.Parameter]
) -> Iterator[str]:
    shown = f"{name}({', '.join(parameter.name for parameter in theirs)})"
    for parameter in ours:
        if parameter.kind in _VARIADIC:
            yield f"{name}() takes {parameter}; the interface says {shown}"
            return
    by_name = {parameter.name: parameter for parameter in ours}
    missing = [p.name for p in theirs if p.name not in by_name]
    if missing:
        yield f"{name}() lacks the parameter {', '.join(missing)}; the interface says {shown}"
        return
    yield from _order_faults(name, shown, ours, theirs)
    wanted = {parameter.name for parameter in theirs}
    for parameter in ours:
        if parameter.name not in wanted and parameter.default is inspect.Parameter.empty:
            yield f"{name}() demands {parameter.name}, which nobody passes; it says {shown}"
    for promised in theirs:
        is_optional = promised.default is not inspect.Parameter.empty
        if is_optional and by_name[promised.name].default is inspect.Parameter.empty:
            yield f"{name}() has no default for {promised.name}"


def _order_faults(
    name: str, shown: str, ours: list[inspect.Parameter], theirs: list[inspect.Parameter]
) -> Iterator[str]:
    positional = inspect.Parameter.POSITIONAL_OR_KEYWORD
    wanted = [p.name for p in theirs if p.kind is positional]
    names = [p.name for p in ours if p.kind is positional][: len(wanted)]
    if names != wanted:
        yield f"{name}() takes ({', '.join(names)}) by position; the interface says {shown}"
    named = {p.name for p in theirs if p.kind is inspect.Parameter.KEYWORD_ONLY}
    for parameter in ours:
        if parameter.name in named and parameter.kind is inspect.Parameter.POSITIONAL_ONLY:
            yield f"{name}() does not take {parameter.name} by name"


def _declaration_faults(cls: type[Plugin]) -> Iterator[str]:
    info = getattr(cls, "info", None)
    if not isinstance(info, Info):
        yield "it has no info = Info(summary=...)"
    else:
        yield from _info_faults(info)
    yield from _options_faults(cls.Options)
    yield from _word_faults(cls)
    yield from _expected_faults(cls.expected_failures)
    if not isinstance(cls.auto_rank, int):
        yield "auto_rank is not a whole number"


def _info_faults(info: Info) -> Iterator[str]:
    yield from _sentence_faults("info.summary", info.summary)
    for name in ("source", "extra"):
        if not isinstance(getattr(info, name), str):
            yield f"info.{name} is not text"
    for name in ("requires", "devices"):
        words = getattr(info, name)
        if not isinstance(words, tuple) or not all(isinstance(word, str) for word in words):
            yield f"info.{name} is not a tuple of words"


def _sentence_faults(name: str, text: object) -> Iterator[str]:
    if not isinstance(text, str) or not text.strip() or "\n" in text:
        yield f"{name} is not one line of text"


def _options_faults(options: object) -> Iterator[str]:
    if not inspect.isclass(options) or not dataclasses.is_dataclass(options):
        yield "Options is not a dataclass"
        return
    parameters: Any = getattr(options, "__dataclass_params__", None)
    if not parameters.frozen:
        yield "Options is not frozen"
    for field in dataclasses.fields(options):
        has_default = (
            field.default is not dataclasses.MISSING
            or field.default_factory is not dataclasses.MISSING
        )
        if not has_default:
            yield f"Options.{field.name} has no default"


def _word_faults(cls: type[Plugin]) -> Iterator[str]:
    words = cls.capabilities
    if not isinstance(words, frozenset):
        yield "capabilities is not a frozenset"
        return
    unknown = sorted(str(word) for word in words if word not in cls.known_capabilities)
    if unknown:
        known = ", ".join(cls.known_capabilities) or "none"
        yield f"capabilities names {', '.join(unknown)}, and the known words are: {known}"


def _expected_faults(expected: object) -> Iterator[str]:
    if not isinstance(expected, Mapping) or not all(
        isinstance(key, str) and isinstance(reason, str) and reason
        for key, reason in expected.items()
    ):
        yield "expected_failures does not map clause names to reasons"
