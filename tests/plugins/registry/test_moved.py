"""What a plugin of an older dovetail meets: it is told where everything went."""

from __future__ import annotations

import importlib
import os
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import pytest

from dovetail import moved, registry
from dovetail.errors import BrokenPlugin, DovetailError
from dovetail.moved import NAMES, PAGE, new_name
from dovetail.registry.moved import CHANGES, GROUPS, METHODS
from dovetail.registry.verify import class_faults, interface_of
from support.third_party import installed

ROOT = Path(__file__).parents[3]


def test_every_name_that_something_moved_to_is_there() -> None:
    assert set(GROUPS.values()) <= set(registry.KINDS) and not set(GROUPS) & set(registry.KINDS)
    for kind, names in METHODS.items():
        assert not any(hasattr(interface_of(kind), name) for name in names)
    page = (ROOT / PAGE).read_text()
    assert all(
        f"| group `dovetail.{old}` | `dovetail.{new}`" in page for old, new in GROUPS.items()
    )
    modules = {old: new for old, new in NAMES.items() if old.rpartition(".")[0] not in NAMES}
    assert all(f"| `{old}` | `{new}` |" in page for old, new in modules.items())


def test_every_version_says_what_changed() -> None:
    page = (ROOT / PAGE).read_text()
    for kind in (kind for kind in registry.KINDS.values() if not kind.is_value):
        version = interface_of(kind.name).interface_version
        told = CHANGES.get(kind.name, {})
        assert list(told) == list(range(2, version + 1)), kind.name
        assert all(f"| `{kind.name}` | {at} | {what} |" in page for at, what in told.items())


@pytest.mark.parametrize("old", NAMES)
def test_every_old_name_can_be_imported(old: str) -> None:
    new = new_name(old)
    assert new is not None
    holder, _, name = old.rpartition(".")
    for module in (holder, old):
        if new_name(module) is not None:
            sys.modules.pop(module, None)
    with pytest.warns(FutureWarning) as caught:
        try:
            got = importlib.import_module(old)
        except ModuleNotFoundError:
            got = getattr(importlib.import_module(holder), name)
    assert any(f"{old} is {new} now" in str(one.message) for one in caught)
    try:
        there: Any = importlib.import_module(new)
    except ModuleNotFoundError:
        home, _, attribute = new.rpartition(".")
        assert got is getattr(importlib.import_module(home), attribute)
    else:
        names = [one for one in vars(there) if not one.startswith("_")]
        public = [one for one in names if f"{old}.{one}" not in NAMES]  # which have moved further
        assert all(getattr(got, one) is getattr(there, one) for one in public)
        with pytest.raises(AttributeError, match="nothing"):
            _ = got.nothing


def test_a_folder_moves_with_all_that_it_holds(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NAMES, "dovetail.bygone", "dovetail.interfaces")
    monkeypatch.setitem(NAMES, "dovetail.bygone.plugin.Facts", "dovetail.interfaces.plugin.Info")
    with pytest.warns(FutureWarning, match=r"dovetail\.bygone") as caught:
        from dovetail.bygone.plugin import Facts, Plugin  # type: ignore[import-not-found]
    from dovetail.interfaces.plugin import Info
    from dovetail.interfaces.plugin import Plugin as Now

    assert Facts is Info and Plugin is Now
    assert {str(one.message).partition(" is ")[0] for one in caught} == {
        "dovetail.bygone",
        "dovetail.bygone.plugin.Facts",
    }
    with pytest.raises(ImportError, match="never"):
        import dovetail.bygone.never  # noqa: F401


def test_a_warning_names_the_line_that_imports(tmp_path: Path) -> None:
    file = tmp_path / "older.py"
    file.write_text("\n\nfrom dovetail.interfaces.form import Json\n")
    done = subprocess.run(
        [sys.executable, file], capture_output=True, text=True, check=True, env=os.environ
    )
    assert f"{file}:3: FutureWarning: dovetail.interfaces.form.Json is" in done.stderr
    assert f"{file}:3: FutureWarning: dovetail.interfaces.form is" in done.stderr


def test_an_old_name_in_a_module_that_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(NAMES, "dovetail.errors.Fault", "dovetail.errors.DovetailError")
    find = moved.attributes("dovetail.errors")
    with pytest.warns(FutureWarning, match=r"dovetail\.errors\.Fault is"):
        assert find("Fault") is DovetailError
    with pytest.raises(AttributeError, match="has no attribute 'other'"):
        find("other")


def test_plugins_of_a_group_that_nobody_knows_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from dovetail.cli.main import main

    entries = {"guided_decoding_backend": {"mine": "old:X"}, "sampler": {"odd": "old:Y"}}
    with installed(tmp_path, "older", "", entries):
        moved, unknown = registry.admin.lost()
        assert "older offers mine" in moved
        assert "is now dovetail.structured_output_backend" in moved
        assert "older offers odd" in unknown and "dovetail.sampler" in unknown
        assert main(["plugins", "list", "router"]) == 0
        assert moved in capsys.readouterr().err
    assert registry.admin.lost() == []


def test_an_import_of_a_module_that_moved_says_where_it_is(tmp_path: Path) -> None:
    file = tmp_path / "older.py"
    for line, told in (
        ("from dovetail.interfaces.form import Gone", "dovetail.interfaces.data.constraint"),
        ("from dovetail.interfaces.plugin import Facts", PAGE),
        ("import dovetail.interfaces.nothing", PAGE),
    ):
        path = file.with_stem(f"older_{abs(hash(line))}")
        path.write_text(line + "\n")
        with pytest.raises(BrokenPlugin) as caught:
            registry.admin.load_file(path)
        assert told in str(caught.value)


def test_a_method_that_is_called_no_longer_is_an_error(tmp_path: Path) -> None:
    file = tmp_path / "parser.py"
    file.write_text(
        "from dovetail_plugins.tool_parsers.hermes import Hermes\n"
        "class Older(Hermes):\n    def form(self, tool):\n        return None\n"
    )
    with pytest.raises(BrokenPlugin, match=r"form\(\) is not called.*constraint\(\)"):
        registry.load("tool_parser", f"{file}:Older")
    file = tmp_path / "versioned.py"
    file.write_text(
        "from dovetail_plugins.tool_parsers.hermes import Hermes\n"
        "class Older(Hermes):\n    interface_version = 1\n"
    )
    with pytest.raises(BrokenPlugin, match=r"version 1 .* version 2: `form\(tool\)` .*upgrade_a_"):
        registry.load("tool_parser", f"{file}:Older")


KINDS = [kind.name for kind in registry.KINDS.values() if not kind.is_value]


@pytest.mark.parametrize("kind", KINDS)
def test_an_older_and_a_newer_version_are_told_apart(kind: str) -> None:
    interface = interface_of(kind)
    now = interface.interface_version
    older = type("Older", (interface,), {"interface_version": now - 1})
    newer = type("Newer", (interface,), {"interface_version": now + 1})
    words = type("Words", (interface,), {"interface_version": "1"})
    told = "; ".join(class_faults(kind, older))
    assert f"version {now - 1} of the interface, and this is version {now}" in told
    assert CHANGES.get(kind, {}).get(now, PAGE).rstrip(".") in told
    assert "install a newer dovetail" in "; ".join(class_faults(kind, newer))
    assert "interface_version is '1', not a whole number" in "; ".join(class_faults(kind, words))


def targets_of_contrib() -> list[tuple[str, str]]:
    """Return the kind and the target of each plugin of the packages below contrib."""
    found = []
    for file in sorted(ROOT.glob("contrib/*/pyproject.toml")):
        groups = tomllib.loads(file.read_text())["project"].get("entry-points", {})
        for group, names in groups.items():
            kind = group.removeprefix("dovetail.")
            if kind in KINDS:
                found += [(f"{file.parent}|{kind}", target) for target in names.values()]
    return found


@pytest.mark.parametrize(("place", "target"), targets_of_contrib())
def test_packages_say_which_version_they_are_written_for(place: str, target: str) -> None:
    folder, _, kind = place.partition("|")
    module, _, name = target.partition(":")
    text = (Path(folder) / (module.replace(".", "/") + ".py")).read_text()
    body = text.partition(f"class {name}(")[2]
    assert f"    interface_version = {interface_of(kind).interface_version}\n" in body
