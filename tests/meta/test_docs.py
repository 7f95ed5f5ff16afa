"""Generated pages are up to date, and every path the map names exists."""

from __future__ import annotations

import re
import subprocess
import sys
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_generated_reference_is_current(tmp_path: Path) -> None:
    subprocess.run(
        [sys.executable, ROOT / "docs" / "generate.py", "--out", tmp_path], check=True, cwd=ROOT
    )
    made = {path.name: path.read_text() for path in tmp_path.glob("*.md")}
    kept = {path.name: path.read_text() for path in (ROOT / "docs" / "reference").glob("*.md")}
    assert made
    for name, text in made.items():
        assert kept.get(name) == text, f"docs/reference/{name} is stale: run `make docs`"


def test_what_routes_do_is_told_in_whole_sentences() -> None:
    rows = re.findall(
        r"^\| [A-Z]+ \| `([^`]+)` \| (.*?)(?: Only with(?:out)? `[^`]+`\.)? \| (?:open|needed) \|$",
        (ROOT / "docs" / "reference" / "http.md").read_text(),
        re.MULTILINE,
    )
    assert len(rows) > 20
    assert [path for path, what in rows if not what.endswith(".")] == []


def test_dev_endpoints_are_all_told() -> None:
    from dovetail_plugins.apis.admin.routes import AdminApi

    page = (ROOT / "docs" / "how_to" / "configure.md").read_text()
    told = page.partition("`--enable-dev-endpoints` adds")[2].partition("\n- ")[0]
    routes = {f"`{route.method} {route.path}`" for route in AdminApi.routes}
    assert set(re.findall(r"`(?:GET|POST) [^`]+`", told)) == routes


def test_the_map_shows_every_folder_of_core() -> None:
    """As the layers of the import linter do: the floors of both are the same."""
    core = ROOT / "core" / "dovetail"
    folders = {path.parent.name for path in core.glob("*/__init__.py")}
    table = (ROOT / "docs" / "map.md").read_text().partition("## The folders of core")[2]
    mapped = re.findall(r"`core/dovetail/(\w+)`", table)
    assert sorted(mapped) == sorted(folders)
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    floors = next(c for c in contracts["contracts"] if c["name"] == "the floors of core")["layers"]
    layered = [name.rpartition(".")[2] for floor in floors for name in floor.split(" | ")]
    assert folders - set(layered) == set()
    order = {name: number for number, floor in enumerate(reversed(floors))
             for name in re.findall(r"dovetail\.(\w+)", floor)}  # fmt: skip
    assert [order[name] for name in mapped] == sorted(order[name] for name in mapped)


def test_the_map_shows_the_floors_of_the_server() -> None:
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]
    (floors,) = [
        c["layers"] for c in contracts["contracts"] if c["name"] == "the floors of the server"
    ]
    table = (ROOT / "docs" / "map.md").read_text().partition("## The folders of the server")[2]
    mapped = re.findall(r"^\| `core/dovetail/server/(\w+)(?:\.py)?`", table, re.MULTILINE)
    order = [part for floor in floors for part in floor.split(" | ")]
    assert mapped == [name.rpartition(".")[2] for name in reversed(order)]


def test_a_plain_request_passes_few_files() -> None:
    """A feature that a request does not use is not on its way."""
    table = (ROOT / "docs" / "map.md").read_text().partition("## A plain chat request")[2]
    rows = re.findall(r"^\| (\d+) \|.*\| (.*) \|$", table.partition("\n## ")[0], re.MULTILINE)
    files = {int(number): re.findall(r"`([\w/]+\.py)`", where) for number, where in rows}
    assert len(files) >= 15 and sum(map(len, files.values())) <= 40
    text = {path for number in range(4, 14) for path in files[number]}
    chat = {path for path in text if re.search("chat|conversation|renderer", path)}
    assert len(text - chat) + 1 <= 25  # and the routes of completions


def test_every_path_in_the_map_exists() -> None:
    text = (ROOT / "docs" / "map.md").read_text()
    paths = re.findall(r"`((?:core|plugins|kernels|contrib|tests|docs|examples)/[^`*{ ]+)`", text)
    assert len(paths) > 30
    assert [path for path in paths if not (ROOT / path).exists()] == []


def test_every_clause_of_the_kit_is_on_its_page() -> None:
    page = (ROOT / "docs" / "reference" / "conformance.md").read_text()
    rows = dict(re.findall(r"^\| `(test_\w+)` \| (.*) \|$", page, re.MULTILINE))
    files = (ROOT / "plugins" / "dovetail_testing" / "contracts").glob("test_*.py")
    texts = "\n".join(file.read_text() for file in files)
    clauses = set(re.findall(r"def (test_\w+)\(", texts))
    assert len(clauses) > 300
    assert set(rows) == clauses
    assert [name for name, text in rows.items() if not text.rstrip("`").endswith(".")] == []
