"""What a plugin of an older dovetail meets: it is told where everything went."""

from __future__ import annotations

import importlib
from pathlib import Path

import pytest

from dovetail import registry
from dovetail.errors import BrokenPlugin
from dovetail.registry.moved import GROUPS, METHODS, MODULES, PAGE
from dovetail.registry.verify import interface_of
from support.third_party import installed

ROOT = Path(__file__).parents[3]


def test_every_name_that_something_moved_to_is_there() -> None:
    assert set(GROUPS.values()) <= set(registry.KINDS) and not set(GROUPS) & set(registry.KINDS)
    for old, new in MODULES.items():
        importlib.import_module(new)
        with pytest.raises(ImportError):
            importlib.import_module(old)
    for kind, names in METHODS.items():
        assert not any(hasattr(interface_of(kind), name) for name in names)
    page = (ROOT / PAGE).read_text()
    assert all(f"dovetail.{old}" in page for old in GROUPS)


def test_plugins_of_a_group_that_nobody_knows_are_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    from dovetail.cli.main import main

    entries = {"guided_decoding_backend": {"mine": "old:X"}, "sampler": {"odd": "old:Y"}}
    with installed(tmp_path, "older", "", entries):
        moved, unknown = registry.lost()
        assert "older offers mine" in moved
        assert "is now dovetail.structured_output_backend" in moved
        assert "older offers odd" in unknown and "dovetail.sampler" in unknown
        assert main(["plugins", "list", "router"]) == 0
        assert moved in capsys.readouterr().err
    assert registry.lost() == []


def test_an_import_of_a_module_that_moved_says_where_it_is(tmp_path: Path) -> None:
    file = tmp_path / "older.py"
    for line, told in (
        ("from dovetail.interfaces.form import Form", "dovetail.interfaces.constraint"),
        ("from dovetail.interfaces.plugin import Facts", PAGE),
        ("import dovetail.interfaces.nothing", PAGE),
    ):
        path = file.with_stem(f"older_{abs(hash(line))}")
        path.write_text(line + "\n")
        with pytest.raises(BrokenPlugin) as caught:
            registry.load_file(path)
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
    with pytest.raises(BrokenPlugin, match=r"version 1 .* this is version 2 .*upgrade_a_plugin"):
        registry.load("tool_parser", f"{file}:Older")
