"""Where entries come from: installed metadata, the checkout's tables, the allow-list, hooks."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from dovetail.errors import ConfigError
from dovetail.registry import discovery, hooks
from dovetail.registry.entry import BUILT_IN

CORE = Path(__file__).resolve().parents[3] / "core"


@pytest.fixture(autouse=True)
def fresh_scan() -> Iterator[None]:
    """Scan again before and after each test."""
    discovery.forget()
    yield
    discovery.forget()


def install(folder: Path, name: str, table: str) -> None:
    """Write the metadata of an installed distribution."""
    info = folder / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(table)


def checkout(root: Path, table: str, contrib: str = "") -> Path:
    """Write a source tree, with one contrib package if a table for it is given."""
    (root / "core" / "dovetail").mkdir(parents=True)
    (root / "pyproject.toml").write_text(f'[project]\nname = "dovetail-llm"\n{table}')
    if contrib:
        folder = root / "contrib" / "extra"
        folder.mkdir(parents=True)
        (folder / "pyproject.toml").write_text(f'[project]\nname = "extra-pack"\n{contrib}')
    return root


TABLE = '[project.entry-points."dovetail.dtype"]\nhalf = "a.b:HALF"\n'
CONTRIB = '[project.entry-points."dovetail.dtype"]\nquarter = "c.d:QUARTER"\n'


def found(kind: str = "dtype") -> dict[str, str]:
    """Return id -> target of what a scan finds of a kind."""
    return {entry.id: entry.target for entry in discovery.scan() if entry.kind == kind}


def test_installed_distributions(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "_SOURCE_ROOT", tmp_path)
    install(tmp_path, "my-pack", "[dovetail.dtype]\ntiny = my.mod:TINY\n[other.group]\nx = y:z\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    assert found()["tiny@my-pack"] == "my.mod:TINY"
    assert all(entry.origin == "installed" for entry in discovery.scan())


def test_the_first_folder_of_the_path_counts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "_SOURCE_ROOT", tmp_path)
    install(tmp_path / "old", "my-pack", "[dovetail.dtype]\ntiny = old:TINY\n")
    install(tmp_path / "new", "My_Pack", "[dovetail.dtype]\ntiny = new:TINY\n")
    monkeypatch.syspath_prepend(str(tmp_path / "old"))
    monkeypatch.syspath_prepend(str(tmp_path / "new"))
    assert [target for name, target in found().items() if name.startswith("tiny@")] == ["new:TINY"]


def test_the_checkouts_table_is_the_truth(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frozen = "[dovetail.dtype]\nhalf = stale:HALF\nremoved = stale:GONE\n"
    install(tmp_path / "site", BUILT_IN, frozen)
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    monkeypatch.setattr(discovery, "_SOURCE_ROOT", checkout(tmp_path / "tree", TABLE))
    assert found() == {"half@dovetail-llm": "a.b:HALF"}


def test_a_contrib_counts_when_its_folder_is_on_the_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(discovery, "_SOURCE_ROOT", checkout(tmp_path, TABLE, CONTRIB))
    assert "quarter@extra-pack" not in found()
    discovery.forget()
    monkeypatch.syspath_prepend(str(tmp_path / "contrib" / "extra"))
    assert found()["quarter@extra-pack"] == "c.d:QUARTER"


def test_an_unreadable_table_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "_SOURCE_ROOT", checkout(tmp_path, "nonsense ["))
    with pytest.raises(ConfigError, match=r"pyproject\.toml"):
        discovery.scan()


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (None, {"half@dovetail-llm", "tiny@my-pack", "big@your.pack"}),
        ("", {"half@dovetail-llm"}),
        ("My.Pack", {"half@dovetail-llm", "tiny@my-pack"}),
        ("my-pack, your_pack", {"half@dovetail-llm", "tiny@my-pack", "big@your.pack"}),
    ],
)
def test_allow_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, value: str | None, expected: set[str]
) -> None:
    install(tmp_path, "my-pack", "[dovetail.dtype]\ntiny = my.mod:TINY\n")
    install(tmp_path, "your.pack", "[dovetail.dtype]\nbig = your.mod:BIG\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(discovery, "_SOURCE_ROOT", checkout(tmp_path / "tree", TABLE))
    if value is None:
        monkeypatch.delenv(discovery.ALLOW_VARIABLE, raising=False)
    else:
        monkeypatch.setenv(discovery.ALLOW_VARIABLE, value)
    ours = {"half@dovetail-llm", "tiny@my-pack", "big@your.pack"}
    assert set(found()) & ours == expected


@pytest.mark.parametrize(
    ("own", "other", "expected"),
    [
        (None, "", {"half@dovetail-llm"}),
        (None, "your_pack", {"half@dovetail-llm", "big@your.pack"}),
        (None, "tiny", {"half@dovetail-llm", "tiny@my-pack"}),
        ("", "tiny,your.pack", {"half@dovetail-llm"}),
        ("your.pack", "", {"half@dovetail-llm", "big@your.pack"}),
        ("tiny", None, {"half@dovetail-llm"}),
    ],
)
def test_the_other_servers_list_names_plugins_or_packages_and_ours_wins(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    own: str | None,
    other: str | None,
    expected: set[str],
) -> None:
    install(tmp_path, "my-pack", "[dovetail.dtype]\ntiny = my.mod:TINY\n")
    install(tmp_path, "your.pack", "[dovetail.dtype]\nbig = your.mod:BIG\n")
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(discovery, "_SOURCE_ROOT", checkout(tmp_path / "tree", TABLE))
    for name, value in ((discovery.ALLOW_VARIABLE, own), (discovery.FOREIGN_VARIABLE, other)):
        if value is None:
            monkeypatch.delenv(name, raising=False)
        else:
            monkeypatch.setenv(name, value)
    mine = {"half@dovetail-llm", "tiny@my-pack", "big@your.pack"}
    assert set(found()) & mine == expected


def test_the_scan_is_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discovery, "_SOURCE_ROOT", checkout(tmp_path, TABLE))
    first = discovery.scan()
    (tmp_path / "pyproject.toml").unlink()
    assert discovery.scan() is first


def test_importing_and_listing_is_light() -> None:
    code = (
        "import sys\n"
        "from dovetail import registry\n"
        "[registry.names(kind) for kind in registry.KINDS]\n"
        "heavy = {'torch', 'transformers', 'pluggy', 'fastapi', 'dovetail_plugins'}\n"
        "print(sorted(heavy & {name.split('.')[0] for name in sys.modules}))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": str(CORE)},
    )
    assert done.stdout.strip() == "[]"


HOOKS = """
from dovetail.registry.hooks import hookimpl
heard = []

@hookimpl
def engine_started(spec):
    heard.append(spec)
    return "noted"
"""


def manager_with(tmp_path: Path, *sources: str) -> Any:
    """Return a manager with one hook module per source text."""
    from dovetail.interfaces.data.spec import Selection

    chosen = []
    for number, source in enumerate(sources):
        file = tmp_path / f"hooks_{number}.py"
        file.write_text(source + "\nimport sys\nme = sys.modules[__name__]\n")
        name = f"hooks_{number}"
        chosen.append(Selection(kind="hooks", name=name, target=f"{file}:me", distribution="test"))
    return hooks.manager_of(chosen)


def test_hooks_are_told(tmp_path: Path) -> None:
    manager = manager_with(tmp_path, HOOKS)
    assert hooks.tell(hooks.engine_started, {"spec": 7}, using=manager) == ["noted"]
    assert hooks.tell(hooks.engine_stopped, {"reason": None}, using=manager) == []


def test_a_hook_that_raises_stops_nobody(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    raising = HOOKS.replace("heard.append(spec)", "raise RuntimeError('loud')")
    manager = manager_with(tmp_path, raising, HOOKS)
    with caplog.at_level(logging.ERROR, "dovetail.registry"):
        assert hooks.tell(hooks.engine_started, {"spec": 7}, using=manager) == ["noted"]
    assert "hooks_0@test" in caplog.text


@pytest.mark.parametrize(
    "source", ["raise ValueError('broken')", HOOKS.replace("(spec)", "(spec, unknown_argument)", 1)]
)
def test_broken_hooks_are_left_out(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, source: str
) -> None:
    with caplog.at_level(logging.ERROR, "dovetail.registry"):
        manager = manager_with(tmp_path, source, HOOKS)
    assert "hooks_0@test are left out" in caplog.text
    assert hooks.tell(hooks.engine_started, {"spec": 7}, using=manager) == ["noted"]
