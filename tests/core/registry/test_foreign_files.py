"""Plugin files that are written for another engine go to the importer of the module they import."""

from __future__ import annotations

from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from dovetail.errors import BrokenPlugin, ConfigError
from dovetail.interfaces.plugin import Value
from dovetail.registry import files, register
from dovetail.registry.foreign_files import imported_roots, package_advice
from dovetail.registry.registry import Registry


def run(module: ModuleType, path: Path) -> None:
    """Offer a class whatever is in the file."""
    if "refuse" in path.read_text(encoding="utf-8"):
        raise ConfigError("it says so.", where=path.name)

    class Made:
        """A parser in name only."""

    Made.__module__, Made.__qualname__ = module.__name__, "Made"
    module.__dict__["Made"] = Made
    register("tool_parser", "made")(Made)


IMPORTER = Value(summary="a test", value=run)
ENTRY: dict[str, Any] = {"file_importer": {"otherengine": f"{Path(__file__)}:IMPORTER"}}


def written(folder: Path, text: str) -> Path:
    file = folder / "plugin.py"
    file.write_text(text, encoding="utf-8")
    return file


def test_the_modules_of_a_file(tmp_path: Path) -> None:
    text = "import a.b, c\nfrom d.e import f\nfrom . import g\ndef h():\n    from i import j\n"
    assert imported_roots(written(tmp_path, text)) == {"a", "c", "d", "i"}
    assert imported_roots(written(tmp_path, "not python at all")) == set()
    assert imported_roots(tmp_path / "nowhere.py") == set()


def test_an_importer_runs_the_file(tmp_path: Path) -> None:
    file = written(tmp_path, "import otherengine\n")
    registry = Registry()
    with registry.with_entries(ENTRY, only=True):
        entries = registry.load_file(file)
        assert [(e.kind, e.name, e.target) for e in entries] == [
            ("tool_parser", "made", f"{file}:Made")
        ]
        made = files.import_target(entries[0].target)
    assert made.__doc__ == "A parser in name only."


def test_an_importers_own_error_stands(tmp_path: Path) -> None:
    registry = Registry()
    with (
        registry.with_entries(ENTRY, only=True),
        pytest.raises(ConfigError, match="it says so") as error,
    ):
        registry.load_file(written(tmp_path, "import otherengine  # refuse\n"))
    assert error.value.where == "plugin.py"


def test_without_an_importer(tmp_path: Path) -> None:
    registry = Registry()
    with registry.with_entries({}, only=True):
        with pytest.raises(BrokenPlugin, match="No module named 'otherengine'") as error:
            registry.load_file(written(tmp_path, "import otherengine\n"))
        assert 'install what provides "otherengine"' in str(error.value.fix)
        folder = tmp_path / "other"
        folder.mkdir()
        with pytest.raises(BrokenPlugin, match="No module named 'vllm'") as error:
            registry.load_file(written(folder, "from vllm.tool_parsers import ToolParser\n"))
        assert error.value.fix == package_advice({"vllm"})
        guarded = tmp_path / "guarded"
        guarded.mkdir()
        text = "try:\n    import vllm\nexcept ImportError:\n    pass\n"
        with pytest.raises(ConfigError, match="registers no plugin") as refused:
            registry.load_file(written(guarded, text))
        assert "pip install dovetail-vllm-compat" in str(refused.value.fix)
