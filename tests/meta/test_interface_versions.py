"""An interface that changes so that an existing plugin would break has a higher version.

`interfaces.json` records what every kind promises. Run this file to record it anew.
"""

from __future__ import annotations

import inspect
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from dovetail.interfaces.plugin import Plugin
from dovetail.registry.kinds import KINDS, interface_of

RECORD = Path(__file__).with_name("interfaces.json")
COMMAND = "python tests/meta/test_interface_versions.py"
Promise = dict[str, Any]


def promised() -> dict[str, Promise]:
    """Return the version and the signatures of every kind of plugin that is a class."""
    kinds = {kind.name: interface_of(kind.name) for kind in KINDS.values() if not kind.is_value}
    return {
        name: {"version": cls.interface_version, "methods": methods(cls)}
        for name, cls in sorted(kinds.items())
    }


def methods(interface: type[Plugin]) -> dict[str, str]:
    """Return the signatures of an interface and of its sorts, by "Class.method"."""
    sorts = [one for one in interface.__subclasses__() if one.__module__ == interface.__module__]
    return {
        f"{cls.__name__}.{name}": signature(cls, name)
        for cls in (interface, *sorts)
        for name, value in sorted(vars(cls).items())
        if inspect.isfunction(value) or isinstance(value, classmethod | staticmethod)
        if not name.startswith("_") or name == "__init__"
    }


def signature(cls: type[Plugin], name: str) -> str:
    """Return the parameters of a method, without annotations."""
    parameters = inspect.signature(getattr(cls, name)).parameters.values()
    plain = [one.replace(annotation=inspect.Parameter.empty) for one in parameters]
    must = "abstract " if name in cls.__abstractmethods__ else ""
    return must + str(inspect.Signature(plain))


def breaks(was: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Return the methods whose change may break a plugin: all but new ones with a default."""
    changed = [name for name in was if name not in now or bare(now[name]) != bare(was[name])]
    known = {name.partition(".")[0] for name in was}
    demanded = [
        name
        for name in now
        if now[name].startswith("abstract ") and not was.get(name, "").startswith("abstract ")
        if name.partition(".")[0] in known  # a new sort of plugins has none yet
    ]
    return sorted(changed + demanded)


def bare(told: str) -> str:
    """Return a signature without whether the method must be written."""
    return told.removeprefix("abstract ")


def faults(was: Mapping[str, Promise], now: Mapping[str, Promise]) -> list[str]:
    """Return what is wrong with the versions, or with the record."""
    found = []
    for name, kind in now.items():
        before = was.get(name)
        if before == kind:
            continue
        broken = [] if before is None else breaks(before["methods"], kind["methods"])
        if before is not None and broken and kind["version"] <= before["version"]:
            found.append(
                f"{name}: {', '.join(broken)} changed; raise interface_version to "
                f"{before['version'] + 1}, say what changed in CHANGES of "
                f"core/dovetail/registry/moved.py, and run `{COMMAND}`."
            )
        else:
            found.append(f"{name}: what it promises is not recorded; run `{COMMAND}`.")
    found += [f"{name} is gone; run `{COMMAND}`." for name in was if name not in now]
    return found


def test_versions_rise_with_what_they_promise() -> None:
    assert faults(json.loads(RECORD.read_text()), promised()) == []


def test_a_change_without_a_new_version_is_found() -> None:
    was = promised()
    name = "logits_processor"
    for method, told in (
        ("LogitsProcessor.apply", "abstract (self, logits)"),
        ("LogitsProcessor.fresh", "abstract (self)"),
    ):
        now = {**was, name: {**was[name], "methods": {**was[name]["methods"], method: told}}}
        (fault,) = faults(was, now)
        assert "raise interface_version" in fault and method in fault
        now[name]["version"] += 1
        (fault,) = faults(was, now)
        assert "not recorded" in fault
    added = {**was[name]["methods"], "LogitsProcessor.fresh": "(self)"}
    (fault,) = faults(was, {**was, name: {**was[name], "methods": added}})
    assert "not recorded" in fault


if __name__ == "__main__":
    RECORD.write_text(json.dumps(promised(), indent=1) + "\n")
